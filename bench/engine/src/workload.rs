//! Runs one workload against an open store, and measures every operation of it.

use crate::cell::{Cell, Workload};
use crate::generator::{decimal_key, Permutation, Random, UserKeys, Values, Zipf};
use crate::stores::{Result, Store};
use hdrhistogram::Histogram;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

const ZIPF_THETA: f64 = 0.99;
const LONGEST_SCAN: u64 = 100;
const SEEK_ROWS: u64 = 50;
const KEYS_AT_ONCE: u64 = 100;
/// A fill that takes longer is cut off, and says so.
const LONGEST_FILL: Duration = Duration::from_secs(600);
/// Rows of a sequential read that are timed together: one is faster than a look at the clock.
const TIMED_TOGETHER: u64 = 64;
/// The longest latency that is told apart from longer ones.
const LONGEST_NS: u64 = 60_000_000_000;
/// A paced writer sleeps when the next put is further away than this, else it spins.
const WORTH_SLEEPING: Duration = Duration::from_micros(300);

pub struct Outcome {
    pub operations: u64,
    pub seconds: f64,
    /// Key and value bytes of all puts.
    pub user_bytes: u64,
    pub inserted: u64,
    /// Rows that scans and reads brought.
    pub rows_read: u64,
    pub latency: Histogram<u64>,
    /// Latency of puts alone; in a paced run counted from when each was due.
    pub put_latency: Histogram<u64>,
    pub series: Series,
    pub cut_off: bool,
}

/// Operations and the longest put per piece of time.
pub struct Series {
    pub piece: Duration,
    pub operations: Vec<u64>,
    pub longest_ns: Vec<u64>,
}

impl Series {
    const PIECE: Duration = Duration::from_millis(100);
    const MOST: usize = 120;

    fn new() -> Self {
        Self { piece: Self::PIECE, operations: Vec::new(), longest_ns: Vec::new() }
    }

    fn note(&mut self, since_start: Duration, latency_ns: u64) {
        let at = (since_start.as_nanos() / self.piece.as_nanos()) as usize;
        if at >= self.operations.len() {
            self.operations.resize(at + 1, 0);
            self.longest_ns.resize(at + 1, 0);
        }
        self.operations[at] += 1;
        self.longest_ns[at] = self.longest_ns[at].max(latency_ns);
    }

    fn add(&mut self, other: &Self) {
        let length = self.operations.len().max(other.operations.len());
        self.operations.resize(length, 0);
        self.longest_ns.resize(length, 0);
        for (at, (operations, longest)) in other.operations.iter().zip(&other.longest_ns).enumerate() {
            self.operations[at] += operations;
            self.longest_ns[at] = self.longest_ns[at].max(*longest);
        }
    }

    /// Doubles the pieces until there are few enough to keep.
    pub fn shorten(&mut self) {
        while self.operations.len() > Self::MOST {
            self.operations = self.operations.chunks(2).map(|pair| pair.iter().sum()).collect();
            self.longest_ns = self.longest_ns.chunks(2).map(|pair| pair.iter().copied().max().unwrap_or(0)).collect();
            self.piece *= 2;
        }
    }
}

/// What all threads of a run share.
struct Run<'a> {
    cell: &'a Cell,
    store: &'a dyn Store,
    values: &'a Values,
    order: Permutation,
    users: UserKeys,
    zipf: Option<Zipf>,
    /// Rows there are, those under way included; inserts raise it.
    rows: AtomicU64,
    begin: Instant,
    deadline: Duration,
    operations: u64,
}

/// What one thread owns.
struct Worker<'a> {
    run: &'a Run<'a>,
    random: Random,
    value: Vec<u8>,
    user_bytes: u64,
    inserted: u64,
    rows_read: u64,
    latency: Histogram<u64>,
    put_latency: Histogram<u64>,
    series: Series,
}

fn histogram() -> Result<Histogram<u64>> {
    Histogram::new_with_bounds(1, LONGEST_NS, 3).map_err(|e| e.to_string())
}

/// Runs the cell's workload for as many operations as it has rows, or until its time is over.
pub fn run(cell: &Cell, store: &dyn Store, values: &Values) -> Result<Outcome> {
    run_part(cell, store, values, cell.seconds, 0)
}

/// As [`run`], unmeasured in effect: brings caches into the state they have in the middle of a long run.
pub fn warm(cell: &Cell, store: &dyn Store, values: &Values, seconds: f64) -> Result<()> {
    run_part(cell, store, values, seconds, 1).map(drop)
}

fn run_part(cell: &Cell, store: &dyn Store, values: &Values, seconds: f64, part: u64) -> Result<Outcome> {
    let rows = if cell.workload.fills() { cell.rows } else { cell.present };
    if rows == 0 {
        return Err("there are no rows to work on".to_owned());
    }
    let zipfian = cell.workload.is_ycsb() && !cell.workload.fills();
    let writes_all = cell.workload.settles();
    let mut run = Run {
        cell,
        store,
        values,
        order: Permutation::new(cell.rows, 99),
        users: UserKeys::new(),
        zipf: zipfian.then(|| Zipf::new(rows, ZIPF_THETA)),
        rows: AtomicU64::new(rows),
        begin: Instant::now(),
        deadline: if writes_all { LONGEST_FILL } else { Duration::from_secs_f64(seconds) },
        operations: if writes_all { rows } else { u64::MAX },
    };
    run.begin = Instant::now();
    let threads = u64::from(cell.threads.max(1));
    let mut workers = std::thread::scope(|scope| {
        let handles: Vec<_> = (0..threads)
            .map(|thread| (thread, &run))
            .map(|(thread, run)| scope.spawn(move || Worker::work(run, thread, threads, part)))
            .collect();
        handles
            .into_iter()
            .map(|handle| handle.join().unwrap_or_else(|_| Err("a worker panicked".to_owned())))
            .collect::<Result<Vec<_>>>()
    })?;
    let seconds = run.begin.elapsed().as_secs_f64();
    let Some(mut sum) = workers.pop() else { return Err("no worker".to_owned()) };
    for other in workers {
        sum.latency.add(&other.latency).map_err(|e| e.to_string())?;
        sum.put_latency.add(&other.put_latency).map_err(|e| e.to_string())?;
        sum.series.add(&other.series);
        sum.user_bytes += other.user_bytes;
        sum.inserted += other.inserted;
        sum.rows_read += other.rows_read;
    }
    let operations = if cell.workload == Workload::ReadSeq { sum.rows_read } else { sum.latency.len() };
    sum.series.shorten();
    Ok(Outcome {
        operations,
        seconds,
        user_bytes: sum.user_bytes,
        inserted: sum.inserted,
        rows_read: sum.rows_read,
        latency: sum.latency,
        put_latency: sum.put_latency,
        series: sum.series,
        cut_off: writes_all && operations < run.operations,
    })
}

impl<'a> Worker<'a> {
    fn work(run: &'a Run<'a>, thread: u64, threads: u64, part: u64) -> Result<Self> {
        let seed = u64::from(run.cell.round) << 32 | thread << 16 | part << 8 | run.cell.workload as u64;
        let mut worker = Self {
            run,
            random: Random::new(seed),
            value: Vec::with_capacity(run.values.size()),
            user_bytes: 0,
            inserted: 0,
            rows_read: 0,
            latency: histogram()?,
            put_latency: histogram()?,
            series: Series::new(),
        };
        match run.cell.workload {
            Workload::ReadSeq => worker.read_all()?,
            _ => worker.operate(thread, threads)?,
        }
        Ok(worker)
    }

    fn operate(&mut self, thread: u64, threads: u64) -> Result<()> {
        let gap = if self.run.cell.rate > 0.0 { Some(threads as f64 / self.run.cell.rate) } else { None };
        let mut before = self.run.begin.elapsed();
        let mut step = thread;
        while step < self.run.operations && before < self.run.deadline {
            if let Some(gap) = gap {
                before = wait_until(self.run.begin, Duration::from_secs_f64((step / threads) as f64 * gap));
            }
            let put = self.operation(step)?;
            let after = self.run.begin.elapsed();
            let nanos = (after - before).as_nanos().clamp(1, u128::from(LONGEST_NS)) as u64;
            self.latency.saturating_record(nanos);
            if put {
                self.put_latency.saturating_record(nanos);
            }
            self.series.note(after, nanos);
            before = after;
            step += threads;
        }
        Ok(())
    }

    /// One operation; tells whether it was a put.
    fn operation(&mut self, step: u64) -> Result<bool> {
        let run = self.run;
        match run.cell.workload {
            Workload::FillSeq => self.put(&decimal_key(2 * step), 2 * step, 0)?,
            Workload::FillRandom | Workload::Paced => {
                let number = 2 * run.order.at(step);
                self.put(&decimal_key(number), number, 0)?;
            }
            Workload::Overwrite => {
                let number = self.some_number();
                self.put(&decimal_key(number), number, step + 1)?;
            }
            Workload::ReadRandom => {
                let number = self.some_number();
                return self.read(&decimal_key(number), Some(number)).map(|()| false);
            }
            Workload::ReadMissing => {
                let number = self.some_number();
                return self.read(&decimal_key(number + 1), None).map(|()| false);
            }
            Workload::MultiGet => return self.read_several().map(|()| false),
            Workload::Seek50 => {
                let number = self.some_number();
                return self.scan(&decimal_key(number), SEEK_ROWS).map(|()| false);
            }
            Workload::Load => self.put(&run.users.key(step), step, 0)?,
            Workload::YcsbA => return self.read_or_update(50, step),
            Workload::YcsbB => return self.read_or_update(95, step),
            Workload::YcsbC => return self.read_or_update(100, step),
            Workload::YcsbD if self.random.below(100) < 95 => return self.read_latest().map(|()| false),
            Workload::YcsbE if self.random.below(100) < 95 => {
                let record = self.popular()?;
                let length = 1 + self.random.below(LONGEST_SCAN);
                return self.scan(&run.users.key(record), length).map(|()| false);
            }
            Workload::YcsbD | Workload::YcsbE => {
                let record = run.rows.fetch_add(1, Relaxed);
                self.put(&run.users.key(record), record, 0)?;
                self.inserted += 1;
            }
            Workload::YcsbF if self.random.below(2) == 0 => {
                let record = self.popular()?;
                self.read(&run.users.key(record), Some(record))?;
                self.put(&run.users.key(record), record, step + 1)?;
            }
            Workload::YcsbF => return self.read_or_update(100, step),
            Workload::ReadSeq | Workload::Open => return Err("not an operation by operation workload".to_owned()),
        }
        Ok(true)
    }

    fn put(&mut self, key: &[u8], number: u64, version: u64) -> Result<()> {
        self.run.values.fill(number, version, &mut self.value);
        self.run.store.put(key, &self.value)?;
        self.user_bytes += (key.len() + self.value.len()) as u64;
        Ok(())
    }

    /// Reads a key that must be there (`Some` of its number), or must not.
    fn read(&mut self, key: &[u8], expected: Option<u64>) -> Result<()> {
        let values = self.run.values;
        let mut right = false;
        let found =
            self.run.store.get(key, &mut |value| right = expected.is_some_and(|number| values.check(number, value)))?;
        self.rows_read += u64::from(found);
        match expected {
            Some(number) if !found => Err(format!("key number {number} is lost")),
            Some(number) if !right => Err(format!("key number {number} has a wrong value")),
            None if found => Err(format!("{} should not be there", String::from_utf8_lossy(key))),
            _ => Ok(()),
        }
    }

    /// Reads keys that must be there, all at once.
    fn read_several(&mut self) -> Result<()> {
        let numbers: Vec<u64> = (0..KEYS_AT_ONCE).map(|_| self.some_number()).collect();
        let keys: Vec<Vec<u8>> = numbers.iter().map(|number| decimal_key(*number).to_vec()).collect();
        let (values, mut right) = (self.run.values, 0);
        let found = self.run.store.multi_get(&keys, &mut |at, value| {
            right += u64::from(numbers.get(at).is_some_and(|number| values.check(*number, value)));
        })?;
        self.rows_read += found;
        if (found, right) != (KEYS_AT_ONCE, KEYS_AT_ONCE) {
            return Err(format!(
                "of {KEYS_AT_ONCE} keys that were read at once {found} were found, {right} of them right"
            ));
        }
        Ok(())
    }

    fn scan(&mut self, start: &[u8], rows: u64) -> Result<()> {
        let size = self.run.values.size();
        let mut wrong = 0_u64;
        let mut first = true;
        let seen = self.run.store.scan(Some(start), rows, &mut |key, value| {
            wrong += u64::from(value.len() != size || (first && key != start));
            first = false;
        })?;
        self.rows_read += seen;
        if wrong > 0 || seen == 0 {
            return Err(format!("a scan from {} went wrong", String::from_utf8_lossy(start)));
        }
        Ok(())
    }

    fn read_or_update(&mut self, read_percent: u64, step: u64) -> Result<bool> {
        let record = self.popular()?;
        let key = self.run.users.key(record);
        if self.random.below(100) < read_percent {
            return self.read(&key, Some(record)).map(|()| false);
        }
        self.put(&key, record, step + 1).map(|()| true)
    }

    fn read_latest(&mut self) -> Result<()> {
        let back = self.zipf()?.next(&mut self.random);
        let record = self.run.rows.load(Relaxed).saturating_sub(1 + back);
        let key = self.run.users.key(record);
        if self.run.cell.threads > 1 {
            // Another thread may be about to insert it.
            return self.run.store.get(&key, &mut |_| ()).map(drop);
        }
        self.read(&key, Some(record))
    }

    fn read_all(&mut self) -> Result<()> {
        let size = self.run.values.size();
        while self.run.begin.elapsed() < self.run.deadline {
            let (mut wrong, mut seen, mut last) = (0_u64, 0_u64, Instant::now());
            let latency = &mut self.latency;
            let rows = self.run.store.scan(None, u64::MAX, &mut |_, value| {
                wrong += u64::from(value.len() != size);
                seen += 1;
                if seen % TIMED_TOGETHER == 0 {
                    let now = Instant::now();
                    latency.saturating_record(((now - last).as_nanos() as u64 / TIMED_TOGETHER).max(1));
                    last = now;
                }
            })?;
            if wrong > 0 || rows != self.run.rows.load(Relaxed) {
                return Err(format!(
                    "a full scan brought {rows} rows, {wrong} of them wrong, instead of {}",
                    self.run.cell.present
                ));
            }
            self.rows_read += rows;
        }
        Ok(())
    }

    /// The number of a present key of the micro workloads, uniform.
    fn some_number(&mut self) -> u64 {
        2 * self.run.order.at(self.random.below(self.run.cell.present))
    }

    /// A YCSB record, zipfian over the whole key space.
    fn popular(&mut self) -> Result<u64> {
        Ok(self.zipf()?.scrambled(&mut self.random))
    }

    fn zipf(&self) -> Result<&'a Zipf> {
        self.run.zipf.as_ref().ok_or_else(|| "no popularity".to_owned())
    }
}

/// Latencies of a writer who goes at `rate` and is as busy as if he were at `share` of his peak, but puts nothing, while another thread
/// keeps a second core busy: pauses that are the machine's own.
pub fn put_nothing(rate: f64, share: f64, operations: u64) -> Result<Histogram<u64>> {
    let (done, gap) = (AtomicBool::new(false), 1.0 / rate);
    let mut latency = histogram()?;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Relaxed) {
                std::hint::spin_loop();
            }
        });
        let begin = Instant::now();
        for step in 0..operations {
            let due = wait_until(begin, Duration::from_secs_f64(step as f64 * gap));
            let begun = begin.elapsed();
            while (begin.elapsed() - begun).as_secs_f64() < gap * share {}
            latency.saturating_record((begin.elapsed() - due).as_nanos().clamp(1, u128::from(LONGEST_NS)) as u64);
        }
        done.store(true, Relaxed);
    });
    Ok(latency)
}

/// Waits until `due` after `begin`; tells when the operation was due: lateness counts as latency.
fn wait_until(begin: Instant, due: Duration) -> Duration {
    loop {
        let now = begin.elapsed();
        if now >= due {
            return due;
        }
        if due - now > WORTH_SLEEPING {
            std::thread::sleep(due - now - WORTH_SLEEPING / 2);
        } else {
            std::hint::spin_loop();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_writer_of_nothing_is_late_by_his_own_work_at_least() {
        let latency = put_nothing(20_000.0, 0.7, 1000).unwrap();
        assert_eq!(latency.len(), 1000);
        assert!(latency.min() >= 34_000, "{} ns", latency.min());
    }
}
