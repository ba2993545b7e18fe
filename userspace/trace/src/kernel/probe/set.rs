//! All probes of one library, and those that the library does not allow.

use ncclflow_common::{FetchPlan, Walk};

use super::{
    api_probes::{api_arguments, api_entry, api_line, api_return},
    graph_probes::add_captures,
    launch_args,
    lookup::Compiled,
    op_probes::{api_call, proxy_op, proxy_peer},
    step_places::add_steps,
    walk_probes,
};
use flow::{
    session::{CallSource, Level, MissingProbe, ProbePlace, ProbeStrategy, StepDetail},
    wire::ProbeKind,
};
use nccl_library::{
    elf::FileOffset,
    fields::{MissingField, ops_lead_to_tasks},
    nccl::ApiFunction,
    symbols::{Function, Resolution},
};

impl Probe {
    pub fn place(&self) -> ProbePlace {
        match self.kind {
            ProbeKind::ApiReturn(_) => ProbePlace::Return,
            _ => ProbePlace::Entry,
        }
    }
}

/// A plan that a walk runs for a node or a row, with records of its own.
#[derive(Clone, Debug)]
pub struct Part {
    /// NCCL's name of the list or table that is read.
    pub name: &'static str,
    pub kind: ProbeKind,
    pub plan: FetchPlan,
}

/// The lists that a probe follows, and what it reads of their nodes.
#[derive(Clone, Debug)]
pub struct WalkProgram {
    /// The parts; the first is the plan that finds the lists, and sends nothing.
    pub parts: Vec<Part>,
    /// The walk, with plans numbered by their place in `parts`.
    pub walk: Walk,
}

#[derive(Clone, Debug)]
pub struct Probe {
    /// NCCL's name of the function.
    pub function: String,
    /// The symbol that is probed, with its clone suffix.
    pub symbol: String,
    pub file_offset: FileOffset,
    pub kind: ProbeKind,
    pub plan: FetchPlan,
    pub walk: Option<WalkProgram>,
    /// Set if the call stack is recorded, too.
    pub takes_stack: bool,
}

#[derive(Clone, Debug, Default)]
pub struct ProbeSet {
    pub probes: Vec<Probe>,
    pub missing: Vec<MissingProbe>,
    /// Strategy by which ops are seen; `None` if they are not.
    pub strategy: Option<ProbeStrategy>,
    /// Functions at which calls are seen; `None` if they are not.
    pub calls: Option<CallSource>,
}

/// Compiles the probes that a level needs. Those of [`Level::Steps`] are at the entries of the hooks;
/// [`add_steps`] knows better places. Without a wanted strategy, the first that the library allows is taken:
/// plans, then calls.
pub fn compile(resolution: &Resolution, level: Level, wanted: Option<ProbeStrategy>) -> ProbeSet {
    if level == Level::Api {
        return api_calls(resolution);
    }
    let mut set = ProbeSet::default();
    if wanted != Some(ProbeStrategy::PerCall) {
        let walked = plans(resolution);
        if wanted == Some(ProbeStrategy::Plan) || !walked.probes.is_empty() {
            set = walked;
        }
    }
    if set.probes.is_empty() && wanted != Some(ProbeStrategy::Plan) {
        set = calls(resolution);
    }
    add_captures(&mut set, resolution);
    if level == Level::Steps {
        add_steps(&mut set, resolution, None, StepDetail::Transitions);
    }
    set
}

/// Compiles one probe for all calls or, where the library does not allow that, one for each exported
/// function.
fn api_calls(resolution: &Resolution) -> ProbeSet {
    let mut set = ProbeSet { calls: Some(CallSource::EnqueueCheck), ..ProbeSet::default() };
    let lost = "the calls of the API: nothing can be recorded";
    set.add(resolution, "ncclEnqueueCheck", lost, |function| api_line(resolution, function, false));
    if !set.probes.is_empty() {
        return set;
    }
    for function in ApiFunction::all().filter(|function| function.communicates()) {
        let name = function.name();
        if !resolution.functions(name).is_empty() {
            set.add(resolution, name, "its calls", |_| api_arguments(resolution, function));
        }
    }
    set.calls = (!set.probes.is_empty()).then_some(CallSource::ExportedFunctions);
    let is_replaced = |missing: &&mut MissingProbe| missing.function == "ncclEnqueueCheck";
    for missing in set.missing.iter_mut().filter(is_replaced).filter(|_| set.calls.is_some()) {
        "which communicator and rank a call is of, but for the communicator's address: calls are recorded by the \
         arguments of the exported functions instead"
            .clone_into(&mut missing.lost);
    }
    set
}

/// Compiles a probe for launched plans, and one for those that a callback posts; both or none.
fn plans(resolution: &Resolution) -> ProbeSet {
    let mut set = ProbeSet { strategy: Some(ProbeStrategy::Plan), ..ProbeSet::default() };
    let lost = "every op";
    if walk_probes::is_possible(resolution) {
        for name in [walk_probes::LAUNCH, walk_probes::CALLBACK] {
            set.add(resolution, name, lost, |function| walk_probes::walk(resolution, function));
        }
    } else {
        let why = "the launch plans of this version do not describe their operations completely (2.23 and \
                   later do), or their layout is not known";
        set.add_missing(walk_probes::LAUNCH, why, lost);
    }
    if !set.missing.is_empty() {
        set.probes.clear();
    } else if launch_args::sees_one_sided(resolution) {
        let lost = "one-sided calls: their peers and bytes";
        set.add(resolution, launch_args::ONE_SIDED, lost, |function| walk_probes::walk(resolution, function));
    }
    set
}

fn calls(resolution: &Resolution) -> ProbeSet {
    let mut set = ProbeSet { strategy: Some(ProbeStrategy::PerCall), ..ProbeSet::default() };
    let lost = "all operations: nothing can be recorded";
    set.add(resolution, "ncclProxySaveOp", lost, |function| proxy_op(resolution, function));
    let lost = "the peers and transports of operations";
    set.add(resolution, "SaveProxy", lost, |function| proxy_peer(resolution, function));
    if !ops_lead_to_tasks(&resolution.layouts) {
        let lost = "the API function, count and data type of operations";
        set.add(resolution, "ncclEnqueueCheck", lost, |function| api_call(resolution, function));
    }
    set
}

/// Adds the probe of `--api` to the probes of another level.
pub fn add_api_calls(set: &mut ProbeSet, resolution: &Resolution) {
    let (lost, before) = ("the calls of the API", set.probes.len());
    set.add(resolution, "ncclEnqueueCheck", lost, |function| api_line(resolution, function, true));
    set.calls = (set.probes.len() > before).then_some(CallSource::EnqueueCheck);
}

/// Adds the probes of `--returns`: at the return of every exported function that the library has, and at the
/// entry of those that do not come through `ncclEnqueueCheck`.
pub fn add_api_returns(set: &mut ProbeSet, resolution: &Resolution) {
    for function in ApiFunction::all() {
        let name = function.name();
        // No version has all of them.
        if resolution.functions(name).is_empty() {
            continue;
        }
        if !function.communicates() {
            set.add(resolution, name, "how long it takes", |_| api_entry(resolution, function));
        }
        let lost = "its result, and how long it takes";
        set.add(resolution, name, lost, |_| api_return(resolution, function));
    }
}

/// Makes probes take call stacks at calls of the API and where ops are launched. With probes that are hit for
/// each op and peer, the stack is taken at the call or, where no call is probed, where the op is planned.
pub fn take_stacks(set: &mut ProbeSet) {
    let has_calls = set.probes.iter().any(|probe| matches!(probe.kind, ProbeKind::ApiCall(_)));
    for probe in &mut set.probes {
        probe.takes_stack = match probe.kind {
            ProbeKind::ApiLine(_) | ProbeKind::ApiArguments(_) | ProbeKind::ApiCall(_) => true,
            // CUDA calls the callback, so there is no caller to show.
            ProbeKind::Plan(_) => probe.function != walk_probes::CALLBACK,
            ProbeKind::ProxyOp(_) => !has_calls,
            _ => false,
        };
    }
}

impl ProbeSet {
    /// Takes out probes at places where none may be: `why` says so of a place in the file. Whatever named the
    /// place, the library's symbols, a debug file or a search, the code there decides.
    pub fn refuse(&mut self, why: impl Fn(FileOffset) -> Option<&'static str>) {
        let refused: Vec<_> = self.probes.extract_if(.., |probe| why(probe.file_offset).is_some()).collect();
        for Probe { function, file_offset, .. } in refused {
            self.add_missing(&function, why(file_offset).unwrap_or_default(), "what this probe shows");
        }
    }

    /// Records that a probe is not possible.
    pub(super) fn add_missing(&mut self, name: &str, why: impl Into<String>, lost: &str) {
        let (function, lost) = (name.to_owned(), lost.to_owned());
        self.missing.push(MissingProbe { function, why: why.into(), lost });
    }

    /// Adds the probe, or records why it is not possible.
    pub(super) fn add_probe(
        &mut self,
        name: &str,
        (symbol, file_offset): (String, FileOffset),
        compiled: Result<(FetchPlan, ProbeKind, Option<WalkProgram>), String>,
        lost: &str,
    ) {
        match compiled {
            Ok((plan, kind, walk)) => {
                let function = name.to_owned();
                self.probes.push(Probe {
                    function,
                    symbol,
                    file_offset,
                    kind,
                    plan,
                    walk,
                    takes_stack: false,
                });
            }
            Err(why) => self.add_missing(name, why, lost),
        }
    }

    /// Returns all copies of a function to probe.
    pub(super) fn functions<'a>(
        &mut self,
        resolution: &'a Resolution,
        name: &str,
        lost: &str,
    ) -> &'a [Function] {
        let functions = resolution.functions(name);
        if functions.is_empty() {
            let why = resolution.why_unknown(name).unwrap_or("this version has no such function");
            self.add_missing(name, why, lost);
        }
        functions
    }

    pub(super) fn add(
        &mut self,
        resolution: &Resolution,
        name: &str,
        lost: &str,
        compile: impl Fn(&Function) -> Compiled,
    ) {
        for function in self.functions(resolution, name, lost) {
            let compiled = compile(function).map_err(|error| reason(resolution, &error));
            self.add_probe(name, (function.symbol.clone(), function.uprobe_place()), compiled, lost);
        }
    }
}

/// Says why a probe cannot be compiled: if a whole struct is not known, why that is so.
fn reason(resolution: &Resolution, error: &anyhow::Error) -> String {
    if let Some(missing) = error.downcast_ref::<MissingField>()
        && let Some(why) = resolution.why_unknown(missing.strukt)
    {
        return format!("the layout of `{}` is not known: {why}", missing.strukt);
    }
    error.to_string()
}
