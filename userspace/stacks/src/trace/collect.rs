//! Finds the slices that launched the kernels that are asked for, and the stacks of those slices.
//!
//! A kernel and its launch have the same correlation: CUPTI's number, which Kineto keeps. Without it, a flow
//! leads from one to the other. A kernel that two threads could have launched is given to neither.

use std::collections::{HashMap, HashSet};

use anyhow::{Result, bail};

use super::{
    Window,
    event::{Consumer, FlowEnd, FlowId, Kind, LeftOut, Slice, TrackId},
    file::{Progress, TraceFile},
    names::{NameId, Names, Pattern, frame_name},
    nesting::{LaunchId, Point, ThreadSlice, walk},
};
use crate::{Frame, GroupedStacks, StackCounter};

/// Question to a trace.
#[derive(Clone, Debug)]
pub struct Query {
    pub window: Window,
    /// Name of the kernels; with a `%` in it, a pattern of SQL's LIKE.
    pub kernel_name: String,
    /// Most callers of a launch.
    pub stack_depth: usize,
}

/// Answer of a trace.
#[derive(Clone, Debug, Default)]
pub struct Found {
    /// The stacks of the launches of the kernels, counted by kernels.
    pub stacks: GroupedStacks,
    /// Number of the kernels that a replay of a graph launched: their stack is that of the replay.
    pub replayed: u64,
    /// Number of kernels of that name whose launch neither the trace nor the window shows.
    pub without_launch: u64,
    /// Number of kernels of that name that several calls may have launched.
    pub ambiguous: u64,
    /// Names of all kernels that began in the window, with their numbers, the most frequent first.
    pub window_kernels: Vec<(Frame, u64)>,
    /// Set if a kernel of the name that is asked for began in the window.
    pub has_kernel: bool,
    /// Events that were left out, with the reason.
    pub notes: Vec<String>,
}

/// Reads a trace and finds the stacks behind its kernels.
pub fn stacks_of(trace: &mut TraceFile, query: &Query, progress: &mut dyn FnMut(Progress)) -> Result<Found> {
    let mut collector = Collector::new(query);
    let left_out = trace.read(&mut collector, progress)?;
    if let Some(mut flows) = FlowEvents::needed_by(&collector) {
        trace.read(&mut flows, progress)?;
        collector.take_flows(flows);
    }
    let mut found = collector.finish(query.stack_depth)?;
    found.notes = notes(left_out);
    Ok(found)
}

fn notes(left_out: LeftOut) -> Vec<String> {
    let LeftOut { without_time, ends_alone, without_state } = left_out;
    let said = [
        (without_time, "events without a usable time were left out"),
        (ends_alone, "ends of slices have no beginning: the trace began in the middle of them"),
        (without_state, "packets could not be read, because others were lost before the trace was written"),
    ];
    said.iter().filter(|(count, _)| *count > 0).map(|(count, what)| format!("{count} {what}")).collect()
}

/// A kernel of the name that is asked for.
#[derive(Debug)]
struct Kernel {
    track: TrackId,
    begin: i64,
    end: i64,
    correlation: Option<u64>,
    flows: Box<[FlowId]>,
}

/// A slice that may have launched kernels.
#[derive(Debug)]
struct Launch {
    track: TrackId,
    begin: i64,
    end: i64,
    kernels: u64,
}

impl Launch {
    /// Returns the inner one of two launches, if one calls the other: CUDA's runtime calls the driver.
    fn inner_of<'a>(a: (LaunchId, &'a Self), b: (LaunchId, &'a Self)) -> Option<LaunchId> {
        let (outer, inner) = if a.1.begin <= b.1.begin { (a, b) } else { (b, a) };
        let is_called = outer.1.track == inner.1.track && inner.1.begin < outer.1.end;
        is_called.then_some(inner.0)
    }
}

/// Launch with a correlation, or several of which none calls the other.
#[derive(Clone, Copy, Debug)]
enum Correlated {
    With(LaunchId),
    Ambiguous,
}

/// Most ends of flows that are looked at for a kernel: there is one.
const MAX_ENDS: usize = 16;

/// Begin of a flow.
#[derive(Clone, Copy, Debug)]
enum Origin {
    Launch(LaunchId),
    /// Slice that encloses this time on the track.
    Point(TrackId),
}

struct Collector {
    window: Window,
    kernel_name: Pattern,
    names: Names,
    threads: Vec<Vec<ThreadSlice>>,
    launches: Vec<Launch>,
    by_correlation: HashMap<u64, Correlated, foldhash::quality::RandomState>,
    kernels: Vec<Kernel>,
    /// Outgoing ends of each flow, with the times at which they begin.
    outgoing: HashMap<FlowId, Vec<(i64, Origin)>, foldhash::quality::RandomState>,
    incoming: HashMap<TrackId, Vec<(i64, FlowId)>, foldhash::quality::RandomState>,
    window_kernels: HashMap<NameId, u64, foldhash::quality::RandomState>,
    has_kernel: bool,
}

impl Consumer for Collector {
    fn slice(&mut self, slice: &Slice<'_>) -> Result<()> {
        match slice.kind {
            Kind::Kernel => self.kernel(slice),
            Kind::Device => Ok(()),
            Kind::CudaCall | Kind::Cpu => self.thread_slice(slice),
        }
    }
}

/// Flows that are events of their own. They are read only for kernels that have neither a correlation nor
/// flows of their slices: Kineto has them besides its correlations, and they would take more memory than all
/// else.
struct FlowEvents {
    window: Window,
    /// Tracks of these kernels.
    tracks: HashSet<TrackId>,
    outgoing: Vec<FlowEnd>,
    incoming: HashMap<TrackId, Vec<(i64, FlowId)>, foldhash::quality::RandomState>,
}

impl FlowEvents {
    fn needed_by(collector: &Collector) -> Option<Self> {
        let without =
            collector.kernels.iter().filter(|kernel| kernel.correlation.is_none() && kernel.flows.is_empty());
        let tracks: HashSet<_> = without.map(|kernel| kernel.track).collect();
        (!tracks.is_empty()).then(|| Self {
            window: collector.window,
            tracks,
            outgoing: Vec::new(),
            incoming: HashMap::default(),
        })
    }
}

impl Consumer for FlowEvents {
    fn slice(&mut self, _: &Slice<'_>) -> Result<()> {
        Ok(())
    }

    fn takes_flows(&self) -> bool {
        true
    }

    fn flow(&mut self, end: FlowEnd) -> Result<()> {
        if !end.is_incoming && self.window.has_launch(end.at) {
            self.outgoing.push(end);
        } else if end.is_incoming && self.tracks.contains(&end.track) {
            self.incoming.entry(end.track).or_default().push((end.at, end.flow));
        }
        Ok(())
    }
}

impl Collector {
    fn new(query: &Query) -> Self {
        Self {
            window: query.window,
            kernel_name: Pattern::new(&query.kernel_name),
            names: Names::default(),
            threads: Vec::new(),
            launches: Vec::new(),
            by_correlation: HashMap::default(),
            kernels: Vec::new(),
            outgoing: HashMap::default(),
            incoming: HashMap::default(),
            window_kernels: HashMap::default(),
            has_kernel: false,
        }
    }

    fn kernel(&mut self, slice: &Slice<'_>) -> Result<()> {
        let is_asked_for = self.kernel_name.matches(slice.name);
        if self.window.has_kernel(slice.begin) {
            *self.window_kernels.entry(self.names.id(slice.name)?).or_default() += 1;
            self.has_kernel |= is_asked_for;
        }
        if is_asked_for {
            self.kernels.push(Kernel {
                track: slice.track,
                begin: slice.begin,
                end: slice.end,
                correlation: slice.correlation,
                flows: slice.flows.into(),
            });
        }
        Ok(())
    }

    fn thread_slice(&mut self, slice: &Slice<'_>) -> Result<()> {
        if !self.window.overlaps(slice.begin, slice.end) {
            return Ok(());
        }
        let may_launch = slice.correlation.is_some() || !slice.flows.is_empty();
        let launch =
            if may_launch && self.window.has_launch(slice.begin) { Some(self.launch(slice)?) } else { None };
        let name = match slice.kind {
            // The numbers at the end of CUDA's names are versions, as in cudaLaunchKernelExC_v11060.
            Kind::CudaCall => self.names.id(slice.name),
            _ => self.names.id(&frame_name(slice.name)),
        }?;
        let track = slice.track.0 as usize;
        if track >= self.threads.len() {
            self.threads.resize_with(track + 1, Vec::new);
        }
        let slices = &mut self.threads[track];
        let mut at = slices.len();
        if slice.is_after_inner {
            // Among slices of the same times the outer comes first, as where slices are told by their begin.
            let is_same = |inner: &ThreadSlice| (inner.begin, inner.end) == (slice.begin, slice.end);
            at -= slices.iter().rev().take_while(|inner| is_same(inner)).count();
        }
        slices.insert(at, ThreadSlice { begin: slice.begin, end: slice.end, name, launch });
        Ok(())
    }

    fn launch(&mut self, slice: &Slice<'_>) -> Result<LaunchId> {
        let number = u32::try_from(self.launches.len() + 1).ok().and_then(LaunchId::new);
        let Some(number) = number else { bail!("it has more than {} launches", u32::MAX) };
        let launch = Launch { track: slice.track, begin: slice.begin, end: slice.end, kernels: 0 };
        if let Some(correlation) = slice.correlation {
            let known = self.by_correlation.get(&correlation);
            let correlated = match known {
                None => Some(number),
                Some(Correlated::With(known)) => self
                    .launches
                    .get(known.get() as usize - 1)
                    .and_then(|other| Launch::inner_of((*known, other), (number, &launch))),
                Some(Correlated::Ambiguous) => None,
            };
            let correlated = correlated.map_or(Correlated::Ambiguous, Correlated::With);
            self.by_correlation.insert(correlation, correlated);
        }
        for flow in slice.flows {
            self.outgoing.entry(*flow).or_default().push((slice.begin, Origin::Launch(number)));
        }
        self.launches.push(launch);
        Ok(number)
    }

    /// Finds the launch of a kernel, and its time.
    fn origin(&self, kernel: &Kernel) -> Launched {
        let correlated = kernel.correlation.and_then(|number| self.by_correlation.get(&number));
        if let Some(Correlated::With(launch)) = correlated {
            return Launched::By(kernel.begin, Origin::Launch(*launch));
        }
        let ends = self.incoming.get(&kernel.track).map_or(&[][..], |ends| {
            let first = ends.partition_point(|(at, _)| *at < kernel.begin);
            &ends[first..]
        });
        let ends = ends.iter().take(MAX_ENDS).take_while(|(at, _)| *at <= kernel.end).map(|(_, flow)| flow);
        let origins = kernel.flows.iter().chain(ends).filter_map(|flow| {
            let origins = self.outgoing.get(flow)?;
            let before = origins.partition_point(|(at, _)| *at <= kernel.begin);
            origins[..before].last()
        });
        match (origins.max_by_key(|(at, _)| *at), correlated) {
            (Some((at, origin)), _) => Launched::By(*at, *origin),
            (None, Some(_)) => Launched::ByOneOfSeveral,
            (None, None) => Launched::Unknown,
        }
    }

    fn take_flows(&mut self, flows: FlowEvents) {
        for end in flows.outgoing {
            self.outgoing.entry(end.flow).or_default().push((end.at, Origin::Point(end.track)));
        }
        self.incoming = flows.incoming;
    }

    fn finish(mut self, depth: usize) -> Result<Found> {
        self.outgoing.values_mut().for_each(|origins| origins.sort_by_key(|(at, _)| *at));
        self.incoming.values_mut().for_each(|ends| ends.sort_by_key(|(at, _)| *at));
        let mut found = Found { has_kernel: self.has_kernel, ..Found::default() };
        let mut points: HashMap<TrackId, Vec<Point>> = HashMap::new();
        for kernel in std::mem::take(&mut self.kernels) {
            match self.origin(&kernel) {
                Launched::By(_, Origin::Launch(launch)) => {
                    if let Some(launch) = self.launches.get_mut(launch.get() as usize - 1) {
                        launch.kernels += 1;
                    }
                }
                Launched::By(at, Origin::Point(track)) => {
                    points.entry(track).or_default().push(Point { at, kernels: 1 });
                }
                Launched::ByOneOfSeveral => found.ambiguous += 1,
                Launched::Unknown => found.without_launch += 1,
            }
        }
        let mut counts: HashMap<Vec<NameId>, u64> = HashMap::new();
        let mut each = |names: &[NameId], kernels| {
            if let Some(counted) = counts.get_mut(names) {
                *counted += kernels;
            } else {
                counts.insert(names.to_vec(), kernels);
            }
        };
        let kernels_of = |launch: LaunchId| {
            self.launches.get(launch.get() as usize - 1).map_or(0, |launch| launch.kernels)
        };
        for (slices, track) in self.threads.iter_mut().zip(0..) {
            let mut points = points.remove(&TrackId(track)).unwrap_or_default();
            found.without_launch += walk(slices, kernels_of, &mut points, depth, &mut each)?;
        }
        // These points are on tracks of which no slice is known.
        found.without_launch += points.values().flatten().map(|point| point.kernels).sum::<u64>();
        let mut counter = StackCounter::default();
        for (names, kernels) in counts {
            if names.last().is_some_and(|name| is_replay(self.names.text(*name))) {
                found.replayed += kernels;
            }
            counter.add(names.iter().map(|name| Frame::new(self.names.text(*name))).collect(), kernels);
        }
        found.stacks = counter.finish();
        found.window_kernels = self
            .window_kernels
            .iter()
            .map(|(name, count)| (Frame::new(self.names.text(*name)), *count))
            .collect();
        found.window_kernels.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
        Ok(found)
    }
}

/// Launch of a kernel.
#[derive(Clone, Copy, Debug)]
enum Launched {
    By(i64, Origin),
    ByOneOfSeveral,
    Unknown,
}

/// Tells whether a name is a call of CUDA, or HIP, that launches all kernels of a graph.
fn is_replay(name: &str) -> bool {
    ["cudaGraphLaunch", "cuGraphLaunch", "hipGraphLaunch"].iter().any(|call| name.starts_with(call))
}
