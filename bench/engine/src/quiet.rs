//! What a machine does of its own while something is measured, and what is done against it for so long.

use crate::process;
use std::fs;
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::ptr;
use std::time::{Duration, Instant};

/// Idle cores poll while this is kept: on some machines one that sleeps takes a tenth of a millisecond to wake up, and background
/// threads are woken all the time. None where the system does not let us.
pub fn keep_cores_awake() -> Option<fs::File> {
    let mut device = fs::File::options().write(true).open("/dev/cpu_dma_latency").ok()?;
    device.write_all(&0_i32.to_ne_bytes()).ok()?;
    Some(device)
}

/// How the kernel of a virtual machine tells the host about free memory, and what is written there so that it does not: a switch
/// that some have, and the order of the least that is told, of which the largest is not the same everywhere.
const REPORTING: &str = "/sys/module/page_reporting/parameters";
const SILENCE: [(&str, &[&str]); 2] = [("free_bitmap_enable", &["N"]), ("page_reporting_order", &["11", "10"])];
/// Memory that is left alone.
const LEFT: usize = 2 << 30;
/// What a host gives at once, mostly: a huge page.
const PIECE: usize = 2 << 20;
/// A piece that takes longer has come from the host.
const LONG: Duration = Duration::from_millis(1);

/// Waits for the end of its input, which is that of this program at the latest, however it ends; then writes to each file named what
/// is named after it.
const PUT_BACK: &str = r#"cat >/dev/null; while [ $# -gt 1 ]; do printf %s "$2" >"$1"; shift 2; done"#;

/// Free memory stays with a virtual machine while this is kept. Otherwise the host takes it, and whoever needs a page of it again
/// waits until a huge page has come back; the run tells how long that takes. A fill of a store makes hundreds of megabytes of new
/// pages a second, and would measure the host.
pub struct Memory {
    /// Puts back what was changed.
    keeper: Child,
    /// What fetching it was like.
    pub told: String,
}

impl Memory {
    /// Changes settings of the kernel, which are put back at the end, and fetches what is free.
    pub fn keep() -> Result<Memory, String> {
        let settings = SILENCE.iter().map(|(name, values)| (PathBuf::from(REPORTING).join(name), *values));
        let mut memory = Memory::change(settings)?;
        memory.told = fetch(process::available_memory().saturating_sub(LEFT));
        eprintln!("free memory is kept from the host: {}", memory.told);
        Ok(memory)
    }

    /// Writes to each file that there is the first of the values that it takes.
    fn change<'v>(settings: impl Iterator<Item = (PathBuf, &'v [&'v str])>) -> Result<Memory, String> {
        let there = |(path, values)| Some((fs::read_to_string(&path).ok()?, path, values));
        let settings: Vec<(String, PathBuf, &[&str])> = settings.filter_map(there).collect();
        let mut keeper = Command::new("sh");
        keeper.args(["-c", PUT_BACK, "keeper"]).stdin(Stdio::piped()).process_group(0);
        settings.iter().for_each(|(before, path, _)| _ = keeper.arg(path).arg(before.trim()));
        let keeper = keeper.spawn().map_err(|e| format!("sh: {e}"))?;
        let memory = Memory { keeper, told: String::new() };
        let taken =
            |(_, path, values): &(String, PathBuf, &[&str])| values.iter().any(|value| fs::write(path, value).is_ok());
        match settings.iter().filter(|setting| taken(setting)).count() {
            0 => Err(format!("nothing in {REPORTING} could be changed")),
            _ => Ok(memory),
        }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        drop(self.keeper.stdin.take());
        let _ = self.keeper.wait();
    }
}

/// Touches so much memory, which the host gives for that, and frees it. Tells what the host gave, and how long it took.
fn fetch(bytes: usize) -> String {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: an anonymous mapping at an address of the system's choice touches nothing that exists.
    let start = unsafe { libc::mmap(ptr::null_mut(), bytes, protection, flags, -1, 0) };
    if start == libc::MAP_FAILED {
        return "none, there is no room for it".to_owned();
    }
    // SAFETY: advice on the mapping that was just made.
    unsafe { libc::madvise(start, bytes, libc::MADV_HUGEPAGE) };
    let mut long = Vec::new();
    for at in (0..bytes).step_by(PIECE) {
        let begun = Instant::now();
        // SAFETY: advice on a part of the mapping.
        unsafe { libc::madvise(start.byte_add(at), PIECE.min(bytes - at), libc::MADV_POPULATE_WRITE) };
        long.extend(Some(begun.elapsed()).filter(|took| *took > LONG));
    }
    // SAFETY: the mapping made above, of which nothing is used any more.
    unsafe { libc::munmap(start, bytes) };
    long.sort();
    let median = long.get(long.len() / 2).map_or(0.0, |took| took.as_secs_f64() * 1e3);
    let (given, all) = ((long.len() * PIECE) >> 20, bytes >> 20);
    format!("{given} of {all} MiB came from it, two in {median:.1} ms")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_changed_is_put_back() {
        let file = std::env::temp_dir().join(format!("engine-bench-quiet-{}", std::process::id()));
        fs::write(&file, "Y\n").unwrap();
        let missing = file.with_extension("missing");
        let settings: [(PathBuf, &[&str]); 2] = [(missing.clone(), &["N"]), (file.clone(), &["N"])];
        let memory = Memory::change(settings.into_iter()).unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), "N");
        drop(memory);
        assert_eq!(fs::read_to_string(&file).unwrap(), "Y");
        fs::remove_file(&file).unwrap();
        assert!(!missing.exists());
        let nothing: [(PathBuf, &[&str]); 1] = [(missing, &["N"])];
        assert!(Memory::change(nothing.into_iter()).is_err());
    }

    #[test]
    fn memory_is_fetched() {
        assert!(fetch(3 << 20).contains(" of 3 MiB"));
    }
}
