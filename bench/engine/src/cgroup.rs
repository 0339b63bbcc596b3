//! A memory control group for one child: what "beyond memory" is made of.
//!
//! Page cache counts against the group that first touched a page, so a store that leans on the kernel's cache and one that
//! brings its own are limited alike. Both control group versions are served.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

pub struct Group {
    dir: PathBuf,
    version: u8,
}

impl Group {
    /// Makes a group that may use `limit` bytes. Fails when this machine gives us no memory controller to write to.
    pub fn new(name: &str, limit: u64) -> io::Result<Self> {
        let mut last = io::Error::new(io::ErrorKind::NotFound, "no memory control group is mounted");
        for (root, version) in roots() {
            let group = Self { dir: root.join(name), version };
            match group.make(limit) {
                Ok(()) => return Ok(group),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    fn make(&self, limit: u64) -> io::Result<()> {
        match fs::create_dir(&self.dir) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        let file = if self.version == 2 { "memory.max" } else { "memory.limit_in_bytes" };
        fs::write(self.dir.join(file), limit.to_string())?;
        if self.version == 2 {
            // No swap file for anybody: what does not fit is read again. Kernels without swap accounting lack the file.
            let _ = fs::write(self.dir.join("memory.swap.max"), "0");
        }
        Ok(())
    }

    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The most it used, page cache included.
    pub fn peak(&self) -> u64 {
        let file = if self.version == 2 { "memory.peak" } else { "memory.max_usage_in_bytes" };
        fs::read_to_string(self.dir.join(file)).ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // A group can be removed once its last process is gone; that may take the kernel a moment.
        for _ in 0..50 {
            if fs::remove_dir(&self.dir).is_ok() {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    }
}

/// Moves this process into the group.
pub fn join(dir: &Path) -> io::Result<()> {
    fs::write(dir.join("cgroup.procs"), std::process::id().to_string())
}

/// Where groups with a memory controller may be made, and of which version.
fn roots() -> Vec<(PathBuf, u8)> {
    let mounts = fs::read_to_string("/proc/mounts").unwrap_or_default();
    let mut roots = Vec::new();
    for line in mounts.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [_, at, kind, options, ..] = words[..] else { continue };
        if kind == "cgroup" && options.split(',').any(|option| option == "memory") {
            roots.push((PathBuf::from(at), 1));
        }
        let controllers = fs::read_to_string(Path::new(at).join("cgroup.subtree_control")).unwrap_or_default();
        if kind == "cgroup2" && controllers.split_whitespace().any(|name| name == "memory") {
            roots.push((PathBuf::from(at), 2));
        }
    }
    roots
}
