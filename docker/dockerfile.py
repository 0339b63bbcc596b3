#!/usr/bin/env python3
"""Executes a Dockerfile in chroots: one for each stage, a copy of a base system.

usage: dockerfile.py DOCKERFILE CONTEXT BASE WORK [--given STAGE=DIR] [--bind DIR] [--env NAME=VALUE]

BASE is the base system for every FROM (an image's name is not looked at, but for the toolchain of a rust image, which is to be
given with --bind). Each stage ends up in WORK/STAGE. A stage that is --given has a directory with its results, and is not
executed. Prints what the last stage runs, as JSON: user, environment, entrypoint, command, health check.
"""
import argparse
import fnmatch
import json
import os
import re
import shlex
import shutil
import subprocess
import sys


class Stage:
    def __init__(self, root):
        self.root, self.directory, self.user = root, "/", "root"
        self.environment = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root"}
        self.entrypoint, self.command, self.health = [], [], []

    def inside(self, path):
        return self.root + os.path.normpath(os.path.join(self.directory, path))


def instructions(path):
    """(name, rest) of each instruction, lines joined, comments left out."""
    text = re.sub(r"^\s*#.*\n", "", open(path).read(), flags=re.M).replace("\\\n", " ")
    for line in filter(None, map(str.strip, text.splitlines())):
        name, rest = line.split(None, 1)
        yield name.upper(), rest


def ignored(name, patterns):
    return any(fnmatch.fnmatch(name, pattern) for pattern in patterns)


def copy(sources, target, patterns=()):
    """COPY: directories give their contents; several files, or a target that ends with a slash, go into it."""
    into = target.endswith("/") or len(sources) > 1
    for source in sources:
        if os.path.isdir(source):
            skip = lambda where, names: [n for n in names if ignored(os.path.relpath(os.path.join(where, n), source), patterns)]
            shutil.copytree(source, target, ignore=skip, symlinks=True, dirs_exist_ok=True)
        else:
            os.makedirs(target if into else os.path.dirname(target), exist_ok=True)
            shutil.copy2(source, os.path.join(target, os.path.basename(source)) if into else target)


def bracketed(rest):
    return json.loads(rest) if rest.startswith("[") else ["/bin/sh", "-c", rest]


def run(stage, command, binds):
    mounted = []
    try:
        for source in ["/proc", "/dev", *binds]:
            target = stage.root + source
            os.makedirs(target, exist_ok=True)
            subprocess.run(["mount", "--bind", source, target], check=True)
            mounted.append(target)
        script = f"cd {shlex.quote(stage.directory)} && exec /bin/sh -c {shlex.quote(command)}"
        subprocess.run(["chroot", stage.root, "/bin/sh", "-c", script], env=stage.environment, check=True,
                       stdout=sys.stderr)
    finally:
        for target in reversed(mounted):
            subprocess.run(["umount", target], check=True)


def main():
    parser = argparse.ArgumentParser()
    for name in ("dockerfile", "context", "base", "work"):
        parser.add_argument(name)
    for name in ("--given", "--bind", "--env"):
        parser.add_argument(name, action="append", default=[])
    options = parser.parse_args()
    given = dict(one.split("=", 1) for one in options.given)
    ignore = options.dockerfile + ".dockerignore"
    patterns = open(ignore).read().split() if os.path.exists(ignore) else []
    stages, stage, name = dict(), None, None
    for instruction, rest in instructions(options.dockerfile):
        if instruction == "FROM":
            _, _, name = rest.partition(" AS ")
            if name in given:
                stages[name], stage = Stage(given[name]), None
                continue
            root = os.path.join(options.work, name)
            print(f"== stage {name}", file=sys.stderr, flush=True)
            subprocess.run(["cp", "-a", options.base, root], check=True)
            shutil.copy("/etc/resolv.conf", root + "/etc/resolv.conf")
            stage = stages[name] = Stage(root)
            stage.environment.update(one.split("=", 1) for one in options.env)
        elif stage is None:
            continue
        elif instruction == "ENV":
            variable, value = rest.split("=", 1)
            stage.environment.setdefault(variable, value)
        elif instruction == "WORKDIR":
            stage.directory = os.path.normpath(os.path.join(stage.directory, rest))
            os.makedirs(stage.root + stage.directory, exist_ok=True)
        elif instruction == "COPY":
            words = rest.split()
            origin = options.context
            if words[0].startswith("--from="):
                origin = stages[words.pop(0)[len("--from="):]].root
            sources = [os.path.normpath(f"{origin}/{word}") for word in words[:-1]]
            target = stage.inside(words[-1]) + ("/" if words[-1].endswith("/") else "")
            copy(sources, target, patterns if origin == options.context else ())
        elif instruction == "RUN":
            print(f"== {rest}", file=sys.stderr, flush=True)
            run(stage, rest, options.bind)
        elif instruction == "USER":
            stage.user = rest
        elif instruction == "ENTRYPOINT":
            stage.entrypoint = bracketed(rest)
        elif instruction == "CMD":
            stage.command = bracketed(rest)
        elif instruction == "HEALTHCHECK":
            stage.health = bracketed(rest.split(" CMD ", 1)[1])
        elif instruction not in ("EXPOSE", "VOLUME", "STOPSIGNAL"):
            sys.exit(f"{options.dockerfile}: {instruction} is not known here")
    print(json.dumps({"root": stage.root, "user": stage.user, "environment": stage.environment,
                      "entrypoint": stage.entrypoint, "command": stage.command, "health": stage.health}))


if __name__ == "__main__":
    main()
