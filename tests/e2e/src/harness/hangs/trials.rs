//! Trials of many kinds, for the programs that count what is said of each.

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
    thread,
};

use anyhow::{Context as _, Result, bail};
use test_support::root;

use super::{KINDS, Kind, kind};
use crate::harness::{job::in_cache, programs};

/// Words after the program's name: `--times 5 --kinds gone,receive`.
#[derive(Debug)]
pub struct Arguments(Vec<String>);

impl Arguments {
    /// Takes them from the environment, if all is there that trials need.
    pub fn of_program() -> Result<Self> {
        let has_all =
            programs::ncclflow().is_some() && programs::bed().is_some() && programs::nvml_double().is_some();
        if !root() || !has_all {
            bail!("something is missing that this needs; see above");
        }
        Ok(Self(std::env::args().skip(1).collect()))
    }

    /// The word after this one.
    #[must_use]
    pub fn value(&self, name: &str) -> Option<&str> {
        let at = self.0.iter().position(|argument| argument == name)?;
        self.0.get(at + 1).map(String::as_str)
    }

    pub fn number(&self, name: &str, default: usize) -> Result<usize> {
        match self.value(name) {
            Some(value) => value.parse().with_context(|| format!("{name} {value}")),
            None => Ok(default),
        }
    }

    /// The kinds that are asked for, by default all.
    pub fn kinds(&self) -> Result<Vec<&'static Kind>> {
        let Some(names) = self.value("--kinds") else { return Ok(KINDS.iter().collect()) };
        let known = |name| kind(name).with_context(|| format!("there is no kind `{name}`"));
        names.split(',').map(known).collect()
    }
}

/// What came of trials.
#[derive(Debug)]
pub struct Tried<R> {
    pub by_kind: BTreeMap<&'static str, Vec<R>>,
    /// Trials that could not be made, and why.
    pub failures: Vec<String>,
}

/// Tries each kind so many times, each time on the next library of those that are in the cache, with so many jobs side by
/// side.
pub fn try_each<R: Send>(
    kinds: &[&'static Kind],
    times: usize,
    at_once: usize,
    try_one: impl Fn(&'static Kind, &str) -> Result<R> + Sync,
) -> Tried<R> {
    let libraries = in_cache();
    let mut work: Vec<(&'static Kind, &'static str)> = Vec::new();
    let mut failures = Vec::new();
    for time in 0..times {
        for (number, kind) in kinds.iter().enumerate() {
            let fits: Vec<&str> = libraries.iter().copied().filter(|version| kind.is_for(version)).collect();
            match fits.get((number + time) % fits.len().max(1)) {
                Some(version) => work.push((kind, version)),
                None => failures.push(format!("{}: no library that it can be made on is here", kind.name)),
            }
        }
    }
    let left = Mutex::new(work.into_iter());
    let tried = Mutex::new(Tried { by_kind: BTreeMap::new(), failures });
    thread::scope(|scope| {
        for _ in 0..at_once {
            scope.spawn(|| {
                while let Some((kind, version)) = { lock(&left).next() } {
                    let outcome = try_one(kind, version);
                    let Tried { by_kind, failures } = &mut *lock(&tried);
                    match outcome {
                        Ok(outcome) => by_kind.entry(kind.name).or_default().push(outcome),
                        Err(error) => failures.push(format!("{}, {version}: {error:#}", kind.name)),
                    }
                }
            });
        }
    });
    tried.into_inner().unwrap_or_else(PoisonError::into_inner)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
