//! What Linux tells about a process, a directory and the machine.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::os::unix::io::AsRawFd;
use std::path::Path;

/// Counters of this process, from its beginning.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Usage {
    /// Bytes it made dirty: counted once per page and write-back, so a log that is appended to in small pieces counts once.
    pub written: u64,
    /// Bytes that were really fetched from the disk for it, page faults included.
    pub read: u64,
    pub cpu_ns: u64,
    pub major_faults: u64,
}

impl Usage {
    pub fn now() -> Self {
        let io = fs::read_to_string("/proc/self/io").unwrap_or_default();
        // SAFETY: all zeroes is a valid rusage, and getrusage only fills it.
        let usage = unsafe {
            let mut usage: libc::rusage = std::mem::zeroed();
            libc::getrusage(libc::RUSAGE_SELF, &mut usage);
            usage
        };
        let nanos = |time: libc::timeval| time.tv_sec as u64 * 1_000_000_000 + time.tv_usec as u64 * 1000;
        Self {
            written: field(&io, "write_bytes:"),
            read: field(&io, "read_bytes:"),
            cpu_ns: nanos(usage.ru_utime) + nanos(usage.ru_stime),
            major_faults: usage.ru_majflt as u64,
        }
    }
}

/// Processor time that the whole machine has used since it was started, in nanoseconds.
pub fn machine_cpu_ns() -> u64 {
    let stat = fs::read_to_string("/proc/stat").unwrap_or_default();
    let first = stat.lines().next().unwrap_or_default();
    // user nice system idle iowait irq softirq steal; in hundredths of a second.
    let ticks: Vec<u64> = first.split_whitespace().skip(1).filter_map(|word| word.parse().ok()).collect();
    let busy: u64 = [0, 1, 2, 5, 6, 7].into_iter().filter_map(|at| ticks.get(at)).sum();
    busy * 10_000_000
}

/// The number behind `name` at the beginning of a line; 0 when there is none.
fn field(text: &str, name: &str) -> u64 {
    let value = text.lines().find_map(|line| line.strip_prefix(name));
    value.and_then(|rest| rest.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}

/// Bytes of memory that programs can have yet.
pub fn available_memory() -> usize {
    field(&fs::read_to_string("/proc/meminfo").unwrap_or_default(), "MemAvailable:") as usize * 1024
}

/// Peak resident bytes of this process; mapped file pages count.
pub fn peak_resident() -> u64 {
    field(&fs::read_to_string("/proc/self/status").unwrap_or_default(), "VmHWM:") * 1024
}

/// Resident anonymous bytes of a process now: its heap, without mapped files.
pub fn anonymous(pid: u32) -> u64 {
    field(&fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default(), "RssAnon:") * 1024
}

/// Bytes that the files under `dir` occupy. Files that vanish meanwhile do not count.
pub fn disk_bytes(dir: &Path) -> u64 {
    let Ok(entries) = fs::read_dir(dir) else { return 0 };
    entries
        .flatten()
        .map(|entry| match entry.metadata() {
            Ok(meta) if meta.is_dir() => disk_bytes(&entry.path()),
            Ok(meta) => meta.blocks() * 512,
            Err(_) => 0,
        })
        .sum()
}

/// Writes the files under `dir` out and drops them from the page cache, so that nobody's memory holds them for free.
pub fn drop_from_cache(dir: &Path, write_out: bool) {
    let Ok(entries) = fs::read_dir(dir) else { return };
    for entry in entries.flatten() {
        let path = entry.path();
        if path.is_dir() {
            drop_from_cache(&path, write_out);
        } else if let Ok(file) = fs::File::open(&path) {
            if write_out {
                let _ = file.sync_data();
            }
            // SAFETY: an open descriptor; the call touches no memory of ours.
            unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
        }
    }
}

/// The name of the processor.
pub fn cpu() -> String {
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let found = text.lines().find(|line| line.starts_with("model name")).and_then(|line| line.split_once(':'));
    found.map(|(_, value)| value.trim().to_owned()).unwrap_or_default()
}

/// What the numbers were measured on, as (name, value).
pub fn machine(dir: &Path) -> Vec<(&'static str, String)> {
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim().to_owned();
    let memory = field(&fs::read_to_string("/proc/meminfo").unwrap_or_default(), "MemTotal:") / 1024;
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    vec![
        ("cpu", cpu()),
        ("cores", cores.to_string()),
        ("memory", format!("{memory} MiB")),
        ("kernel", kernel),
        ("file system", mount_of(dir).unwrap_or_default()),
        ("disk read-ahead", read_ahead(dir).unwrap_or_default()),
        (
            "transparent huge pages",
            fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled").unwrap_or_default().trim().to_owned(),
        ),
        ("load before", load.split_whitespace().take(3).collect::<Vec<_>>().join(" ")),
    ]
}

/// Device and kind of the file system that holds `dir`.
fn mount_of(dir: &Path) -> Option<String> {
    let dir = dir.canonicalize().ok()?;
    let mounts = fs::read_to_string("/proc/mounts").ok()?;
    let mount = mounts
        .lines()
        .filter_map(|line| {
            let mut words = line.split_whitespace();
            let (device, at, kind) = (words.next()?, words.next()?, words.next()?);
            dir.starts_with(at).then(|| (at.len(), format!("{kind} on {device}")))
        })
        .max_by_key(|(length, _)| *length)?;
    Some(mount.1)
}

fn read_ahead(dir: &Path) -> Option<String> {
    let device = fs::metadata(dir).ok()?.dev();
    let id = format!("{}:{}", libc::major(device), libc::minor(device));
    let own = fs::read_to_string(format!("/sys/dev/block/{id}/queue/read_ahead_kb"));
    let text = own.or_else(|_| fs::read_to_string(format!("/sys/dev/block/{id}/../queue/read_ahead_kb"))).ok()?;
    Some(format!("{} KiB", text.trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_writes_and_memory_are_seen() {
        let dir = std::env::temp_dir().join(format!("engine-bench-process-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join("file"), vec![1_u8; 100_000]).unwrap();
        assert!(disk_bytes(&dir) >= 100_000);
        assert!(peak_resident() > 1 << 20);
        assert!(anonymous(std::process::id()) > 0);
        assert!(Usage::now().cpu_ns > 0);
        drop_from_cache(&dir, true);
        assert_eq!(fs::read(dir.join("file")).unwrap().len(), 100_000);
        fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn fields_are_found_by_name() {
        assert_eq!(field("a: 1\nbb:  22 kB\n", "bb:"), 22);
        assert_eq!(field("a: 1\n", "c:"), 0);
    }
}
