//! A device's work in a trace: kernels and copies with their times and the times of their launches.

use std::collections::HashMap;

use anyhow::{Result, bail};

use super::{
    event::{About, Consumer, Kind, Slice, TrackId},
    file::TraceFile,
    names::{NameId, Names},
};

/// Most kernels, copies and calls that launch them which are kept, some 40 bytes each.
const MAX_KEPT: usize = 1 << 23;

/// A kernel, a copy or a fill. Times are Unix times in ns, by the clock of the trace's host.
#[derive(Clone, Copy, Debug)]
pub struct DeviceWork {
    pub begin_ns: u64,
    pub end_ns: u64,
    /// Begin and end of the call that launched the work; `None` if the trace does not have it.
    pub launch_ns: Option<(u64, u64)>,
    /// The stream: equal numbers are one stream.
    pub stream: u32,
    name: NameId,
}

impl DeviceWork {
    /// Returns when the work was launched, or when it began.
    pub fn launched_ns(&self) -> u64 {
        self.launch_ns.map_or(self.begin_ns, |(begin, _)| begin)
    }
}

/// The device work of a process.
#[derive(Debug)]
pub struct DeviceTrace {
    /// The rank of the job that the process says it is.
    pub rank: Option<i32>,
    /// The number of ranks of the job, as the process says.
    pub world_size: Option<i32>,
    /// The work, in the order of launches.
    pub work: Vec<DeviceWork>,
    names: Names,
}

impl DeviceTrace {
    /// Returns the Unix times of the begin of its first and the end of its last work, in ns.
    pub fn span_ns(&self) -> (u64, u64) {
        let first = self.work.iter().map(|work| work.begin_ns).min().unwrap_or_default();
        (first, self.work.iter().map(|work| work.end_ns).max().unwrap_or_default())
    }

    pub fn name(&self, work: &DeviceWork) -> &str {
        self.names.text(work.name)
    }
}

/// Smallest Unix time that is believed, some 32 years. Times of Kineto before torch 2.3 are Unix times
/// already. Others are counted from `baseTimeNanoseconds`, a moment of this quarter of the year, and are far
/// below this.
const MIN_UNIX_NS: i64 = 1_000_000_000_000_000_000;

/// Returns the offset from the trace's times to Unix times. `first` is one of its times.
pub fn unix_offset(base_ns: Option<u64>, first: i64) -> Result<i64> {
    let offset = base_ns.map_or(0, |base| i64::try_from(base).unwrap_or(i64::MAX));
    if first.checked_add(offset).is_none_or(|unix| unix < MIN_UNIX_NS) {
        bail!(
            "its times are no Unix times, and it has no `baseTimeNanoseconds`, which torch's profiler writes: nothing says when it was"
        );
    }
    Ok(offset)
}

/// Reads the trace's metadata, and its first and last times, by its own clock; `None` if it has no slice.
pub fn about(trace: &mut TraceFile) -> Result<(About, Option<(i64, i64)>)> {
    #[derive(Default)]
    struct Head {
        about: About,
        span: Option<(i64, i64)>,
    }
    impl Consumer for Head {
        fn about(&mut self, about: About) {
            self.about.take(about);
        }

        fn slice(&mut self, slice: &Slice<'_>) -> Result<()> {
            let end = if slice.end < i64::MAX { slice.end } else { slice.begin };
            let (first, last) = self.span.unwrap_or((slice.begin, end));
            self.span = Some((first.min(slice.begin), last.max(end)));
            Ok(())
        }
    }
    let mut head = Head::default();
    trace.read(&mut head, &mut |_| ())?;
    Ok((head.about, head.span))
}

/// Reads the device work in a trace of torch's profiler.
pub fn device_work(trace: &mut TraceFile) -> Result<DeviceTrace> {
    let mut collector = Collector::default();
    trace.read(&mut collector, &mut |_| ())?;
    let Collector { about, names, kept, launches } = collector;
    let Some(first) = kept.first() else {
        bail!("it has no kernel of a device: profile with ProfilerActivity.CUDA");
    };
    let offset = unix_offset(about.base_ns, first.begin)?;
    let unix = |at: i64| u64::try_from(at.saturating_add(offset)).unwrap_or(0);
    let launch_of =
        |correlation: u64| launches.get(&correlation).map(|(begin, end)| (unix(*begin), unix(*end)));
    let work = |kept: &Kept| DeviceWork {
        begin_ns: unix(kept.begin),
        end_ns: unix(kept.end),
        launch_ns: launch_of(kept.correlation),
        stream: kept.track.0,
        name: kept.name,
    };
    let mut work: Vec<DeviceWork> = kept.iter().map(work).collect();
    work.sort_by_key(|work| (work.launched_ns(), work.begin_ns));
    Ok(DeviceTrace { rank: about.rank, world_size: about.world_size, work, names })
}

#[derive(Debug)]
struct Kept {
    track: TrackId,
    begin: i64,
    end: i64,
    correlation: u64,
    name: NameId,
}

#[derive(Default)]
struct Collector {
    about: About,
    names: Names,
    kept: Vec<Kept>,
    /// Launches by correlation.
    launches: HashMap<u64, (i64, i64), foldhash::quality::RandomState>,
}

impl Consumer for Collector {
    fn about(&mut self, about: About) {
        self.about.take(about);
    }

    fn slice(&mut self, slice: &Slice<'_>) -> Result<()> {
        // Annotations of the device's timeline have no correlation: they are no work.
        let Some(correlation) = slice.correlation.filter(|_| slice.end < i64::MAX) else { return Ok(()) };
        if self.kept.len() + self.launches.len() >= MAX_KEPT {
            bail!("it has more than {MAX_KEPT} kernels and launches: profile fewer steps");
        }
        match slice.kind {
            Kind::Kernel | Kind::Device => self.kept.push(Kept {
                track: slice.track,
                begin: slice.begin,
                end: slice.end,
                correlation,
                name: self.names.id(slice.name)?,
            }),
            Kind::CudaCall => {
                self.launches.entry(correlation).or_insert((slice.begin, slice.end));
            }
            Kind::Cpu => {}
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_without_a_base_are_unix_times_or_nothing() {
        assert_eq!(unix_offset(None, 1_790_857_026_000_000_000).unwrap(), 0);
        assert_eq!(unix_offset(Some(1_790_857_026_000_000_000), 7).unwrap(), 1_790_857_026_000_000_000);
        assert!(unix_offset(None, 4_502_092_761_278_261).is_err());
        assert!(unix_offset(Some(u64::MAX), i64::MAX).is_err());
    }
}
