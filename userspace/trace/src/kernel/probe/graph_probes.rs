//! Probes by which CUDA graphs are followed: NCCL's tie of plans to a graph, and exported functions of the driver.
//!
//! A launch of a graph is one hit of `cuGraphLaunch`. What the graph holds is told by rarer functions. None has a
//! return probe: the place where a function leaves its answer is kept, and read at the next hit of the thread, or of
//! the process.

use anyhow::anyhow;
use nccl_library::{
    elf::Machine,
    fields::{captures_have_an_origin, kernel_plan},
    symbols::{Function, Resolution, integer_argument},
};

use super::{
    lookup::Compiled,
    plan_builder::{PlanBuilder, Slot},
    set::ProbeSet,
};
use flow::{
    session::ProbeStrategy,
    wire::{GraphMoment, GraphSpans, ProbeKind},
};

/// The function that ties plans to the graph that captures them.
const TIE: &str = "ncclCudaGraphAddDestructor";

/// What is lost without some of the functions.
const LOST: &str = "which operations a launch of a CUDA graph replays";

const NOT_EXPORTED: &str = "the driver does not export it";

const NOTHING: GraphSpans = GraphSpans {
    moment: GraphMoment::Launched,
    stream: None,
    graph: None,
    capture: None,
    exec: None,
    plan: None,
    comm: None,
    answer: None,
    answered: None,
};

/// A function of the driver: where it leaves its answer, and which arguments are the stream whose capture begins or
/// ends, the graph and the executable.
struct OfDriver {
    name: &'static str,
    moment: GraphMoment,
    answer: Option<usize>,
    stream: Option<usize>,
    graph: Option<usize>,
    exec: Option<usize>,
}

const NO_ARGUMENTS: OfDriver =
    OfDriver { name: "", moment: GraphMoment::Launched, answer: None, stream: None, graph: None, exec: None };

/// The functions of the driver, with the places of their arguments (cuda.h).
const OF_DRIVER: [OfDriver; 17] = {
    const fn begin(name: &'static str) -> OfDriver {
        OfDriver { name, moment: GraphMoment::CaptureBegun, stream: Some(0), ..NO_ARGUMENTS }
    }
    const fn begin_into(name: &'static str) -> OfDriver {
        OfDriver { moment: GraphMoment::CaptureBegunInto, graph: Some(1), ..begin(name) }
    }
    const fn end(name: &'static str) -> OfDriver {
        let moment = GraphMoment::CaptureEnded;
        OfDriver { name, moment, answer: Some(1), stream: Some(0), ..NO_ARGUMENTS }
    }
    const fn instantiate(name: &'static str) -> OfDriver {
        let moment = GraphMoment::Instantiated;
        OfDriver { name, moment, answer: Some(0), graph: Some(1), ..NO_ARGUMENTS }
    }
    const fn update(name: &'static str, result: usize) -> OfDriver {
        let (moment, answer) = (GraphMoment::Updated, Some(result));
        OfDriver { name, moment, answer, graph: Some(1), exec: Some(0), ..NO_ARGUMENTS }
    }
    const fn of_exec(name: &'static str, moment: GraphMoment) -> OfDriver {
        OfDriver { name, moment, exec: Some(0), ..NO_ARGUMENTS }
    }
    [
        of_exec("cuGraphLaunch", GraphMoment::Launched),
        of_exec("cuGraphLaunch_ptsz", GraphMoment::Launched),
        begin("cuStreamBeginCapture_v2"),
        begin("cuStreamBeginCapture_v2_ptsz"),
        begin_into("cuStreamBeginCaptureToGraph"),
        begin_into("cuStreamBeginCaptureToGraph_ptsz"),
        end("cuStreamEndCapture"),
        end("cuStreamEndCapture_ptsz"),
        instantiate("cuGraphInstantiate"),
        instantiate("cuGraphInstantiate_v2"),
        instantiate("cuGraphInstantiateWithFlags"),
        instantiate("cuGraphInstantiateWithParams"),
        instantiate("cuGraphInstantiateWithParams_ptsz"),
        update("cuGraphExecUpdate", 3),
        update("cuGraphExecUpdate_v2", 2),
        of_exec("cuGraphExecDestroy", GraphMoment::ExecDestroyed),
        OfDriver {
            name: "cuGraphDestroy",
            moment: GraphMoment::GraphDestroyed,
            graph: Some(0),
            ..NO_ARGUMENTS
        },
    ]
};

/// Adds the probe that tells which plans a graph captures. Where ops are seen call by call, it needs to be known which
/// of them are of one group: that is so before 2.23, whose calls of the API are probed.
pub(super) fn add_captures(set: &mut ProbeSet, resolution: &Resolution) {
    let sees_groups = set.probes.iter().any(|probe| matches!(probe.kind, ProbeKind::ApiCall(_)));
    if set.probes.is_empty() {
        return;
    }
    if set.strategy == Some(ProbeStrategy::PerCall) && !sees_groups {
        let why = "operations that are seen call by call are not tied to a graph in this version; `--probes plan` does";
        set.add_missing(TIE, why, LOST);
        return;
    }
    set.add(resolution, TIE, LOST, |function| tie(resolution, function));
}

/// Compiles the probe on `ncclCudaGraphAddDestructor(ncclCudaGraph graph, cudaHostFn_t fn, void* arg)`.
fn tie(resolution: &Resolution, function: &Function) -> Compiled {
    if function.symbol.contains('.') {
        return Err(anyhow!("the compiler made a copy of it whose parameters are not known"));
    }
    let version =
        resolution.nccl_version.ok_or_else(|| anyhow!("the version of the library is not known"))?;
    let mut builder = PlanBuilder::new(resolution);
    let argument = |builder: &mut PlanBuilder<'_>, number| {
        builder.value_at(&integer_argument(resolution.machine, number))
    };
    let (graph, capture, plan) = if captures_have_an_origin(version) {
        // Larger structs are on the stack, behind the return address, or where the first register says.
        let (at, offset, plan) = match resolution.machine {
            Machine::X86_64 => (Slot::STACK_POINTER, 8, argument(&mut builder, 1)),
            _ => (argument(&mut builder, 0), 0, argument(&mut builder, 2)),
        };
        let [graph, capture] = builder.load_words(at, [offset + 8, offset + 16]);
        (graph, capture, plan)
    } else {
        let [graph, capture, plan] = [0, 1, 3].map(|number| argument(&mut builder, number));
        (graph, capture, plan)
    };
    let comm = builder.load_pointer(plan, kernel_plan::COMM);
    let spans = GraphSpans {
        moment: GraphMoment::Captured,
        graph: Some(builder.emit(graph)),
        capture: Some(builder.emit(capture)),
        plan: Some(builder.emit(plan)),
        comm: Some(builder.emit(comm)),
        ..NOTHING
    };
    builder.compiled(ProbeKind::Graph(spans))
}

/// Compiles the probes of the driver.
pub fn of_driver(resolution: &Resolution) -> ProbeSet {
    let mut set = ProbeSet::default();
    for function in OF_DRIVER {
        // Names can stand for one function.
        let is_new = |set: &ProbeSet, known: &Function| {
            set.probes.iter().all(|probe| probe.file_offset != known.uprobe_place())
        };
        if resolution.functions(function.name).iter().all(|known| is_new(&set, known))
            && !resolution.functions(function.name).is_empty()
        {
            set.add(resolution, function.name, "launches of CUDA graphs", |_| {
                compiled(resolution, &function)
            });
        }
    }
    let has = |set: &ProbeSet, name: &str| set.probes.iter().any(|probe| probe.function.starts_with(name));
    if !has(&set, "cuGraphLaunch") {
        set.probes.clear();
        set.add_missing("cuGraphLaunch", NOT_EXPORTED, "launches of CUDA graphs");
        return set;
    }
    for name in ["cuStreamBeginCapture_v2", "cuStreamEndCapture"] {
        if !has(&set, name) {
            set.add_missing(name, NOT_EXPORTED, LOST);
        }
    }
    set
}

fn compiled(resolution: &Resolution, function: &OfDriver) -> Compiled {
    let mut plan = PlanBuilder::new(resolution);
    let argument = |plan: &mut PlanBuilder<'_>, number: Option<usize>| {
        number.map(|number| plan.value_at(&integer_argument(resolution.machine, number)))
    };
    let answered = [false, true].map(|of_process| {
        let (at, word) = (plan.take(of_process), plan.reserve());
        plan.unless_zero(at, |plan| plan.load_into(word, at, 0, 8));
        [plan.emit(at), plan.emit(word)]
    });
    let [stream, graph, exec] = [function.stream, function.graph, function.exec].map(|number| {
        let value = argument(&mut plan, number)?;
        Some(plan.emit(value))
    });
    let answer = argument(&mut plan, function.answer).map(|at| {
        plan.keep(at);
        let before = plan.load(at, 0, 8);
        [plan.emit(at), plan.emit(before)]
    });
    let (moment, answered) = (function.moment, Some(answered));
    plan.compiled(ProbeKind::Graph(GraphSpans { moment, stream, graph, exec, answer, answered, ..NOTHING }))
}

#[cfg(test)]
mod tests {
    use nccl_library::symbols::driver_request;

    use super::*;

    #[test]
    fn each_function_of_the_driver_is_looked_up() {
        let mut probed = OF_DRIVER.map(|function| function.name);
        let request = driver_request();
        let mut asked: Vec<&str> = request.functions.iter().map(|function| function.name).collect();
        probed.sort_unstable();
        asked.sort_unstable();
        assert_eq!(asked, probed);
    }
}
