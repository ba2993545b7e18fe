//! The slices of a function: one of them can be the window.

use anyhow::{Result, bail};

use super::{
    Window,
    event::{Consumer, Slice},
    file::{Progress, TraceFile},
    names::{NameId, Names, Pattern},
};
use crate::Frame;

/// Most slices: among more none is chosen.
const MAX_MATCHES: usize = 1 << 20;

/// A slice on a thread that has the name that is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Match {
    pub name: Frame,
    /// Begin, in ns of the trace's clock.
    pub start: i64,
    /// Duration in ns; `None` if the slice had not ended when the trace did.
    pub duration: Option<u64>,
}

impl Match {
    pub fn window(&self) -> Window {
        Window::new(self.start, self.duration.unwrap_or(u64::MAX))
    }
}

/// The slices of a function, in the order of their begin.
#[derive(Debug)]
pub struct Functions {
    names: Names,
    matches: Vec<(i64, i64, NameId)>,
}

impl Functions {
    pub fn len(&self) -> usize {
        self.matches.len()
    }

    pub fn is_empty(&self) -> bool {
        self.matches.is_empty()
    }

    pub fn get(&self, index: usize) -> Option<Match> {
        self.matches.get(index).map(|(start, end, name)| Match {
            name: Frame::new(self.names.text(*name)),
            start: *start,
            duration: (*end != i64::MAX).then(|| end.abs_diff(*start)),
        })
    }

    pub fn iter(&self) -> impl Iterator<Item = Match> {
        (0..self.len()).filter_map(|index| self.get(index))
    }
}

/// Finds the slices of a function in a trace. A `%` in `name` makes it a pattern of SQL's LIKE.
pub fn find_functions(
    trace: &mut TraceFile,
    name: &str,
    progress: &mut dyn FnMut(Progress),
) -> Result<Functions> {
    let mut search = Search { pattern: Pattern::new(name), names: Names::default(), matches: Vec::new() };
    trace.read(&mut search, progress)?;
    let Search { names, mut matches, .. } = search;
    matches.sort_by_key(|(begin, end, _)| (*begin, std::cmp::Reverse(*end)));
    Ok(Functions { names, matches })
}

struct Search {
    pattern: Pattern,
    names: Names,
    matches: Vec<(i64, i64, NameId)>,
}

impl Consumer for Search {
    fn slice(&mut self, slice: &Slice<'_>) -> Result<()> {
        if !slice.kind.is_on_device() && self.pattern.matches(slice.name) {
            if self.matches.len() == MAX_MATCHES {
                bail!("more than {MAX_MATCHES} slices have that name: ask for one with fewer");
            }
            self.matches.push((slice.begin, slice.end, self.names.id(slice.name)?));
        }
        Ok(())
    }
}
