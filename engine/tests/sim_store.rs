//! The store on a simulated file system, against a model, with crashes and faults: random micro-steps, every answer checked.
//!
//! The model is the list of states, one after each write. Readers must see exactly the state of their snapshot; after a crash the
//! store must stand at one of the states from the last synced one on. Each seed is one deterministic run;
//! `LOOSEKV_SIM_SEEDS=from..to` runs others than the usual ones.

use loosekv_engine::embedded::sim::{Fault, Random, SimFs};
use loosekv_engine::embedded::{Background, Batch, Iter, Options, Reads, Snapshot, Store, Task, WriteOptions};
use loosekv_engine::error::{Error, Result};
use loosekv_engine::options::{Compression, TreeOptions};
use loosekv_engine::tree::Direction;
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

type State = BTreeMap<Vec<u8>, Vec<u8>>;

const DIR: &str = "/store";

struct Run {
    seed: u64,
    random: Random,
    sim: SimFs,
    options: Options,
    store: Option<Store>,
    /// States that a crash may leave, oldest first; the last is what readers see.
    states: Vec<Arc<State>>,
    /// After writes that were not acknowledged: each may be found after a crash.
    unknown: Vec<Arc<State>>,
    snapshots: Vec<(Snapshot, Arc<State>)>,
    iterators: Vec<Walk>,
    keys: u64,
    /// Errors are to be expected.
    faulty: bool,
}

/// An iterator, and where it should stand.
struct Walk {
    iter: Iter,
    state: Arc<State>,
    bounds: (Bound<Vec<u8>>, Bound<Vec<u8>>),
    direction: Direction,
    from: Bound<Vec<u8>>,
    moved: bool,
}

fn options(random: &mut Random) -> Options {
    let mut tree = TreeOptions {
        memtable_bytes: 64 << 10,
        max_frozen: 3,
        fan_in: 2 + random.below(4) as u32,
        space_percent: 25 + random.below(200) as u32,
        ..TreeOptions::default()
    };
    if random.chance(40) {
        tree.run.compression = Compression::Zstd(1);
    }
    if random.chance(15) {
        tree.run.filter_bits = 0;
    }
    tree.value_log_threshold = [0, 128, 1000, 2048][random.below(4) as usize];
    Options {
        tree,
        frozen_soft: 1,
        log_chunk: 4096 << random.below(3),
        reads: Reads::Cached { bytes: [0, 64 << 10, 1 << 20][random.below(3) as usize] },
        key_index_budget: if random.chance(20) { random.below(8000) } else { 1 << 30 },
        aside_memory: 0,
        background: Background::Caller,
        flush_on_close: random.chance(50),
        ..Options::default()
    }
}

impl Run {
    fn new(seed: u64) -> Run {
        let mut random = Random::new(seed);
        let options = options(&mut random);
        let keys = [5, 40, 400][random.below(3) as usize];
        let sim = SimFs::new(seed);
        let states = vec![Arc::default()];
        let mut run = Run {
            seed,
            random,
            sim,
            options,
            store: None,
            states,
            unknown: Vec::new(),
            snapshots: Vec::new(),
            iterators: Vec::new(),
            keys,
            faulty: false,
        };
        run.open();
        run
    }

    fn store(&self) -> &Store {
        self.store.as_ref().expect("open")
    }

    fn now(&self) -> Arc<State> {
        Arc::clone(self.states.last().expect("never empty"))
    }

    fn key(&mut self) -> Vec<u8> {
        let n = self.random.below(self.keys);
        format!("key-{n:05}-{}", "x".repeat((n % 7) as usize)).into_bytes()
    }

    fn value(&mut self) -> Vec<u8> {
        let len = match self.random.below(40) {
            0 => 60_000,
            1 => 10_000,
            n => [10, 200, 2000, 5000][n as usize % 4],
        };
        let len = self.random.below(len) as usize;
        let byte = self.random.bits() as u8;
        (0..len).map(|i| byte.wrapping_add(i as u8 & 3)).collect()
    }

    /// Opens the store after a crash (or for the first time); it must stand at one of the states.
    fn open(&mut self) {
        let store = loop {
            match Store::open_on(Arc::new(self.sim.clone()), DIR, &self.options) {
                Ok(store) => break store,
                Err(e) if self.faulty => {
                    assert!(!matches!(e, Error::Corrupt { .. }), "seed {}: {e}", self.seed);
                    self.recover();
                }
                Err(e) => panic!("seed {}: cannot open: {e}", self.seed),
            }
        };
        let found: State = match dump(&store) {
            Ok(found) => found,
            Err(e) => panic!("seed {}: cannot read after open: {e}", self.seed),
        };
        let candidates = self.states.iter().chain(&self.unknown);
        let Some(state) = candidates.rev().find(|s| ***s == found).cloned() else {
            if let Some(last) = self.states.last() {
                for (k, v) in &found {
                    if last.get(k) != Some(v) {
                        eprintln!(
                            "found {} of {} bytes, not {:?}",
                            String::from_utf8_lossy(k),
                            v.len(),
                            last.get(k).map(Vec::len)
                        );
                    }
                }
                for k in last.keys().filter(|k| !found.contains_key(*k)) {
                    eprintln!("missing {}", String::from_utf8_lossy(k));
                }
            }
            let near: Vec<usize> = self.states.iter().map(|s| differences(s, &found)).collect();
            panic!("seed {}: found none of the states, differences {near:?}", self.seed);
        };
        self.states = vec![state];
        self.unknown.clear();
        self.store = Some(store);
    }

    /// The machine or the process ends.
    fn recover(&mut self) {
        if self.random.chance(70) {
            self.sim.crash();
        } else {
            self.sim.kill();
        }
        self.faulty = false;
    }

    fn end(&mut self) {
        self.recover();
        self.snapshots.clear();
        self.iterators.clear();
        self.store = None;
        self.open();
    }

    /// What an operation says: an error only if there is a reason for one; and one that ends the store ends this life.
    fn allow(&mut self, what: &str, result: Result<()>) -> bool {
        let Err(e) = result else { return true };
        if std::env::var("LOOSEKV_SIM_TRACE").is_ok() {
            eprintln!("{what}: {e}");
        }
        assert!(self.faulty, "seed {}: {what}: {e}", self.seed);
        assert!(!matches!(e, Error::Corrupt { .. }), "seed {}: {what}: {e}", self.seed);
        false
    }

    fn write(&mut self) {
        let mut batch = Batch::new();
        let mut next = (*self.now()).clone();
        let changes = if self.random.chance(70) { 1 } else { self.random.below(12) };
        for _ in 0..changes {
            let key = self.key();
            if self.random.chance(25) {
                batch.delete(&key);
                next.remove(&key);
            } else {
                let value = self.value();
                batch.put(&key, &value);
                next.insert(key, value);
            }
        }
        let sync = self.random.chance(20);
        let before = self.sim.operations();
        let result = self.store().write_with(&batch, WriteOptions { sync });
        let failed = result.as_ref().err().map(|e| matches!(e, Error::NoSpace(_)));
        if self.allow("write", result) {
            self.states.push(Arc::new(next));
            if sync && changes > 0 {
                self.states.drain(..self.states.len() - 1);
            }
        } else if failed == Some(false) && self.sim.operations() > before {
            // Without room nothing was written; after other errors it is open whether it was.
            self.unknown.push(Arc::new(next));
        }
    }

    fn made_durable(&mut self) {
        self.states.drain(..self.states.len() - 1);
    }

    fn look(&mut self) {
        let key = self.key();
        let expected = self.now();
        let found = self.store().get(&key).unwrap_or_else(|e| panic!("seed {}: get: {e}", self.seed));
        assert_eq!(found.as_ref(), expected.get(&key), "seed {}: get", self.seed);
        if let Some(at) = self.pick(self.snapshots.len()) {
            let (snapshot, state) = &self.snapshots[at];
            let found = snapshot.get(&key).unwrap_or_else(|e| panic!("seed {}: snapshot get: {e}", self.seed));
            assert_eq!(found.as_ref(), state.get(&key), "seed {}: snapshot get", self.seed);
        }
    }

    fn pick(&mut self, n: usize) -> Option<usize> {
        (n > 0).then(|| self.random.below(n as u64) as usize)
    }

    fn begin_walk(&mut self) {
        let mut bound = || match self.random.below(3) {
            0 => Bound::Unbounded,
            kind => {
                let n = self.random.below(self.keys);
                let key = format!("key-{n:05}-{}", "x".repeat((n % 7) as usize)).into_bytes();
                if kind == 1 {
                    Bound::Included(key)
                } else {
                    Bound::Excluded(key)
                }
            }
        };
        let bounds = (bound(), bound());
        let direction = if self.random.chance(50) { Direction::Forward } else { Direction::Backward };
        let (lower, upper) = (bounds.0.as_ref().map(Vec::as_slice), bounds.1.as_ref().map(Vec::as_slice));
        let (iter, state) = match self.pick(self.snapshots.len()) {
            Some(at) if self.random.chance(50) => {
                let (snapshot, state) = &self.snapshots[at];
                (snapshot.range(lower, upper, direction), Arc::clone(state))
            }
            _ => (self.store().range(lower, upper, direction), self.now()),
        };
        let iter = iter.unwrap_or_else(|e| panic!("seed {}: range: {e}", self.seed));
        let from = if direction == Direction::Forward { bounds.0.clone() } else { bounds.1.clone() };
        self.iterators.push(Walk { iter, state, bounds, direction, from, moved: false });
    }

    fn walk(&mut self) {
        let Some(at) = self.pick(self.iterators.len()) else { return self.begin_walk() };
        let steps = self.random.below(30);
        let turn = self.random.chance(25);
        let seed = self.seed;
        let walk = &mut self.iterators[at];
        if turn {
            walk.direction = match walk.direction {
                Direction::Forward => Direction::Backward,
                Direction::Backward => Direction::Forward,
            };
            if !walk.moved {
                let (lower, upper) = walk.bounds.clone();
                walk.from = if walk.direction == Direction::Forward { lower } else { upper };
            }
        }
        for _ in 0..steps {
            let found = walk.step().unwrap_or_else(|e| panic!("seed {seed}: iterate: {e}"));
            if !found {
                self.iterators.swap_remove(at);
                return;
            }
        }
    }

    fn maintain(&mut self) {
        if std::env::var("LOOSEKV_SIM_TRACE").is_ok() {
            eprintln!("{:?}", self.store().statistics());
        }
        let (what, result) = match self.random.below(9) {
            0 => {
                let result = self.store().flush();
                if result.is_ok() {
                    self.made_durable();
                }
                ("flush", result)
            }
            1 if self.random.chance(20) => ("compact", self.store().compact()),
            2 => {
                let result = self.store().sync();
                if result.is_ok() {
                    self.made_durable();
                }
                ("sync", result)
            }
            3 | 4 => ("flush step", self.store().step(Task::Flush).map(|_| ())),
            5 => ("sink step", self.store().step(Task::Sink).map(|_| ())),
            _ => ("merge step", self.store().step(Task::Merge).map(|_| ())),
        };
        self.allow(what, result);
    }

    fn trouble(&mut self) {
        self.faulty = true;
        let at = self.sim.operations() + self.random.below(20);
        match self.random.below(4) {
            0 => self.sim.fault_at(at, Fault::Error),
            1 => self.sim.fault_at(at, Fault::Full),
            2 => self.sim.fault_at(at, Fault::Stop),
            _ => self.sim.set_full(true),
        }
    }

    fn close(&mut self) {
        self.snapshots.clear();
        self.iterators.clear();
        let Some(store) = self.store.take() else { return };
        let result = store.close();
        if self.allow("close", result) {
            self.made_durable();
        }
        if self.faulty || self.random.chance(30) {
            self.recover();
        }
        self.open();
    }

    fn step(&mut self) {
        match self.random.below(1000) {
            0..450 => self.write(),
            450..650 => self.look(),
            650..700 if self.snapshots.len() < 6 => self.snapshots.push((self.store().snapshot(), self.now())),
            700..740 => {
                if let Some(at) = self.pick(self.snapshots.len()) {
                    self.snapshots.swap_remove(at);
                }
            }
            740..780 if self.iterators.len() < 4 => self.begin_walk(),
            780..860 => self.walk(),
            860..975 => self.maintain(),
            975..980 => self.trouble(),
            980..984 => self.close(),
            984..990 => self.end(),
            990..995 => {
                self.faulty |= self.store().trouble().is_some();
                self.sim.set_full(false);
            }
            _ => {}
        }
        // A store that takes no writes any more goes on reading, for a while.
        if self.sim.is_stopped() || self.faulty && self.random.chance(3) {
            self.end();
        }
    }

    fn check_everything(&mut self) {
        let found = dump(self.store()).unwrap_or_else(|e| panic!("seed {}: {e}", self.seed));
        assert_eq!(found, *self.now(), "seed {}: the whole", self.seed);
        for (snapshot, state) in &self.snapshots {
            let pairs: Result<State> = snapshot.iter().expect("iter").pairs().collect();
            assert_eq!(pairs.expect("snapshot"), **state, "seed {}: a snapshot", self.seed);
        }
    }
}

impl Walk {
    fn step(&mut self) -> Result<bool> {
        let found = match self.direction {
            Direction::Forward => self.iter.next()?,
            Direction::Backward => self.iter.prev()?,
        };
        let range = |lower: &Bound<Vec<u8>>, upper: &Bound<Vec<u8>>| {
            let within = self.state.iter().filter(|(key, _)| above(key, lower) && below(key, upper));
            match self.direction {
                Direction::Forward => within.map(|(k, v)| (k.clone(), v.clone())).next(),
                Direction::Backward => within.map(|(k, v)| (k.clone(), v.clone())).next_back(),
            }
        };
        let expected = match self.direction {
            Direction::Forward => range(&self.from, &self.bounds.1).filter(|(k, _)| above(k, &self.bounds.0)),
            Direction::Backward => range(&self.bounds.0, &self.from).filter(|(k, _)| below(k, &self.bounds.1)),
        };
        let show = |b: &Bound<Vec<u8>>| format!("{:?}", b.as_ref().map(|k| String::from_utf8_lossy(k).into_owned()));
        let place = format!(
            "{:?} from {} in {} .. {}",
            self.direction,
            show(&self.from),
            show(&self.bounds.0),
            show(&self.bounds.1)
        );
        let at = String::from_utf8_lossy(self.iter.key()).into_owned();
        if found != expected.is_some() {
            eprintln!("{:?}", self.state.keys().map(|k| String::from_utf8_lossy(k).into_owned()).collect::<Vec<_>>());
        }
        assert_eq!(
            found,
            expected.is_some(),
            "{place}: found {at}, expected {:?}",
            expected.map(|e| show(&Bound::Included(e.0)))
        );
        self.moved = true;
        if let Some((key, value)) = expected {
            assert_eq!((self.iter.key(), self.iter.value()), (key.as_slice(), value.as_slice()));
            self.from = Bound::Excluded(key);
        }
        Ok(found)
    }
}

fn above(key: &[u8], bound: &Bound<Vec<u8>>) -> bool {
    match bound {
        Bound::Unbounded => true,
        Bound::Included(b) => key >= b.as_slice(),
        Bound::Excluded(b) => key > b.as_slice(),
    }
}

fn below(key: &[u8], bound: &Bound<Vec<u8>>) -> bool {
    match bound {
        Bound::Unbounded => true,
        Bound::Included(b) => key <= b.as_slice(),
        Bound::Excluded(b) => key < b.as_slice(),
    }
}

fn dump(store: &Store) -> Result<State> {
    let forward: State = store.iter()?.pairs().collect::<Result<_>>()?;
    let back = store.range(Bound::Unbounded, Bound::Unbounded, Direction::Backward)?;
    let backward: Vec<_> = back.pairs().collect::<Result<_>>()?;
    assert!(forward.iter().rev().eq(backward.iter().map(|(k, v)| (k, v))), "both directions show the same");
    Ok(forward)
}

fn differences(a: &State, b: &State) -> usize {
    a.iter().filter(|(k, v)| b.get(*k) != Some(*v)).count() + b.keys().filter(|k| !a.contains_key(*k)).count()
}

fn seeds(usual: std::ops::Range<u64>) -> std::ops::Range<u64> {
    match std::env::var("LOOSEKV_SIM_SEEDS") {
        Ok(text) => {
            let (from, to) = text.split_once("..").expect("LOOSEKV_SIM_SEEDS=from..to");
            from.parse().expect("a number")..to.parse().expect("a number")
        }
        Err(_) => usual,
    }
}

#[test]
fn the_store_keeps_its_promises_through_crashes_and_faults() {
    // The engine's own tests take the simulator in, but only to run it with mutations.
    if !module_path!().contains("::") {
        seeds(0..150).for_each(run_seed);
    }
}

pub fn run_seed(seed: u64) {
    let mut run = Run::new(seed);
    let trace = std::env::var("LOOSEKV_SIM_TRACE").is_ok();
    for step in 0..600 {
        if trace {
            eprintln!("seed {seed} step {step}, {} operations", run.sim.operations());
        }
        run.step();
    }
    run.end();
    run.check_everything();
}
