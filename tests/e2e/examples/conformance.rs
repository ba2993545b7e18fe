//! `conformance [--no-run] [--no-bed] [--quick] LIBRARY…`: compares what is found in each library with what
//! is found in its stripped copies, and what is recorded of jobs that use it with the truth. Writes a line
//! of JSON for each library.
//!
//! `cargo xtask verify conformance` fetches the libraries, runs this and makes a table of it.

#[path = "conformance/row.rs"]
mod row;

use std::{
    io::Write as _,
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::{Context as _, Result};
use flow::session::{Level, ProbeStrategy, StepDetail};
use nccl_library::{
    elf::{Image, Machine},
    nccl::{PatRule, Pattern},
    symbols::{Code, Function, ParamSource, Resolution, nccl_request, resolve},
};
use ncclflow_e2e::{
    compare::{self, Findings},
    harness::{
        conformance::{Programs, Subject, Witnesses},
        stripped,
    },
};
use test_support::root;
use trace::kernel::probe::{self, Probe, ProbeSet};

use row::{Form, Row};

/// How much is run on the bed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OnTheBed {
    All,
    /// One job, with the library itself.
    OneJob,
    Nothing,
}

fn main() -> Result<ExitCode> {
    let mut libraries: Vec<PathBuf> = std::env::args_os().skip(1).map(PathBuf::from).collect();
    let mut take = |option: &str| {
        let given = libraries.len();
        libraries.retain(|argument| argument != Path::new(option));
        libraries.len() < given
    };
    let (no_run, no_bed, quick) = (take("--no-run"), take("--no-bed"), take("--quick"));
    let on_the_bed = match (no_bed, quick) {
        (true, _) => OnTheBed::Nothing,
        (false, true) => OnTheBed::OneJob,
        (false, false) => OnTheBed::All,
    };
    let programs = if !no_run && root() { Programs::find() } else { None };
    let mut clean = true;
    for library in &libraries {
        let row =
            examine(library, programs.as_ref(), on_the_bed).with_context(|| library.display().to_string())?;
        clean &= row.mismatches.is_empty();
        writeln!(std::io::stdout(), "{}", serde_json::to_string(&row)?)?;
    }
    Ok(if clean { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn examine(library: &Path, programs: Option<&Programs>, on_the_bed: OnTheBed) -> Result<Row> {
    let image = Image::open(library)?;
    let own = resolve(&image, &nccl_request())?;
    let mut row = Row {
        nccl: own.nccl_version.map(|version| version.to_string()).unwrap_or_default(),
        cuda: own.cuda_version.map(|(major, _)| major),
        machine: match own.machine {
            Machine::X86_64 => "x86-64".to_owned(),
            Machine::Aarch64 => "aarch64".to_owned(),
            other @ Machine::Other(_) => format!("{other:?}"),
        },
        build_id: own.build_id.as_ref().map(ToString::to_string).unwrap_or_default(),
        structs: own.layouts.structs.len(),
        fields: own.layouts.structs.values().map(|layout| layout.members.len()).sum(),
        forms: vec![form(&own)],
        ..Row::default()
    };
    let without = own.missing_required().map(|problem| format!("by DWARF: no {}", problem.subject));
    row.mismatches.extend(without);
    let folder = tempfile::tempdir()?;
    for options in [&["--strip-debug"][..], &["--strip-all"]] {
        let copy = stripped::copy(library, folder.path(), options)?;
        let copy = Image::open(&copy)?;
        let found = resolve(&copy, &nccl_request())?;
        row.forms.push(form(&found));
        let differences = differences(&own, &found, [&image, &copy]);
        row.mismatches.extend(differences.into_iter().map(|what| format!("{}: {what}", options.join(" "))));
    }
    let runs_here = match own.machine {
        Machine::X86_64 => cfg!(target_arch = "x86_64"),
        Machine::Aarch64 => cfg!(target_arch = "aarch64"),
        Machine::Other(_) => false,
    };
    if let Some(programs) = programs.filter(|_| runs_here) {
        let copy = folder.path().join("libnccl.so.2");
        let subjects = [(library, None), (copy.as_path(), Some(library))];
        for (number, (library, symbols)) in subjects.into_iter().enumerate() {
            at_work(&mut row, number, programs, Subject { library, symbols }, on_the_bed);
        }
    }
    Ok(row)
}

fn form(resolution: &Resolution) -> Form {
    let functions = || resolution.functions.values().flatten();
    let rung = serde_json::to_value(resolution.symbol_source).ok();
    Form {
        rung: rung.and_then(|rung| rung.as_str().map(str::to_owned)).unwrap_or_default(),
        functions: functions().count(),
        params: functions().flat_map(|copy| &copy.params).filter(|param| param.location.is_known()).count(),
    }
}

/// Functions that nobody finds without symbols: one-sided calls, and launches of graphs, are then only counted.
const BY_NAME: [&str; 2] = [ONE_SIDED, "ncclCudaGraphAddDestructor"];
const ONE_SIDED: &str = "ncclLaunchRma";

/// Where what is found in a copy without debugging information contradicts the library's. To find
/// less is no difference, except in what level `flow` needs and, on the processor whose code is
/// read for it, level `steps`.
fn differences(own: &Resolution, found: &Resolution, images: [&Image; 2]) -> Vec<String> {
    let mut differences = Vec::new();
    for (name, copies) in &found.functions {
        let places = |functions: &[Function]| {
            functions.iter().map(|copy| (copy.vaddr, copy.file_offset, copy.size)).collect::<Vec<_>>()
        };
        let stated = own.functions(name);
        if places(copies) != places(stated) {
            differences.push(format!("{name} is elsewhere"));
            continue;
        }
        for (found, stated) in copies.iter().zip(stated) {
            let known = found.params.iter().filter(|param| param.location.is_known());
            for param in known.filter(|_| found.params_from != ParamSource::Unknown) {
                if stated.param(&param.name) != Some(param) {
                    differences.push(format!("{name}: {} is elsewhere", param.name));
                }
            }
        }
    }
    if own.layouts != found.layouts {
        differences.push("the layouts differ".to_owned());
    }
    let has = |name: &str| !found.functions(name).is_empty();
    let has_one_sided = has(ONE_SIDED);
    let mut compare = |what: &str, sets: [ProbeSet; 2]| {
        let [own, found] = sets.map(|set| {
            let view = |probe: &Probe| {
                let text = format!(
                    "{} {} {:?} {:?} {:?}",
                    probe.function, probe.file_offset, probe.kind, probe.plan, probe.walk
                );
                if has_one_sided { text } else { text.replace("elsewhere: true", "elsewhere: false") }
            };
            let is_compared =
                |probe: &&Probe| !BY_NAME.contains(&probe.function.as_str()) || has(&probe.function);
            set.probes.iter().filter(is_compared).map(view).collect::<Vec<_>>()
        });
        if own != found || own.is_empty() {
            differences.push(format!("other fetch plans ({what})"));
        }
    };
    for way in [None, Some(ProbeStrategy::PerCall)] {
        let sets = [own, found].map(|resolution| probe::compile(resolution, Level::Flow, way));
        compare(&format!("{way:?}"), sets);
    }
    let read = own.machine == Machine::X86_64;
    for detail in [StepDetail::Waits, StepDetail::Transitions].into_iter().filter(|_| read) {
        let [own_image, found_image] = images;
        let sets = [(own, own_image), (found, found_image)].map(|(resolution, image)| {
            let mut set = ProbeSet::default();
            probe::add_steps(&mut set, resolution, Some(&Code::read(image, resolution)), detail);
            set
        });
        compare(&format!("steps, {detail:?}"), sets);
    }
    differences
}

/// Runs jobs under the tracer. `number`: 0 for the library itself, 1 for its stripped copy.
fn at_work(row: &mut Row, number: usize, programs: &Programs, subject: Subject<'_>, on_the_bed: OnTheBed) {
    let form = ["own", "stripped"][number];
    let mismatches = &mut row.mismatches;
    let mut note = |what: &str, found: Result<Findings>| match found {
        Ok(findings) => {
            mismatches.extend(
                findings.mismatches.iter().map(|what_differs| format!("{form}, {what}: {what_differs}")),
            );
            Some(findings.compared)
        }
        Err(error) => {
            mismatches.push(format!("{form}, {what}: {error:#}"));
            None
        }
    };
    row.patterns[number] = note("patterns", programs.patterns(subject));
    let minor = row.nccl.split('.').nth(1).and_then(|minor| minor.parse().ok()).unwrap_or(0);
    if minor >= 23 && subject.symbols.is_none() {
        for local_ranks in [1, 2] {
            note("PAT", pat(programs, subject, &row.nccl, local_ranks));
        }
    }
    let (mut witnesses, jobs) = jobs(minor);
    let jobs = match on_the_bed {
        OnTheBed::All => jobs,
        OnTheBed::OneJob if subject.symbols.is_none() => jobs.get(..1).unwrap_or(jobs),
        OnTheBed::OneJob | OnTheBed::Nothing => return,
    };
    let mut compared = 0;
    for workload in jobs {
        let ran = programs.bed(subject, witnesses, workload).map(|(findings, spoke)| {
            witnesses = spoke;
            findings
        });
        compared += note(workload, ran).unwrap_or(0);
    }
    row.bed[number] = Some(compared);
    row.witnesses = Some(format!("{witnesses:?}").to_lowercase());
}

/// Compares how many messages the library counts for PAT with the rule of its version.
fn pat(programs: &Programs, subject: Subject<'_>, version: &str, local_ranks: u32) -> Result<Findings> {
    let rule = version.parse().ok().and_then(PatRule::of);
    let rule = rule.with_context(|| format!("how {version} counts is not known"))?;
    let counts = programs.pat_counts(subject, local_ranks)?;
    Ok(compare::pat_messages(&counts, rule.between_nodes, |op, members, bytes| {
        let pattern = Pattern::from_enumerator(&format!("ncclPattern{}", op.pattern))?;
        rule.messages(pattern, members, op.chunk_size, bytes)
    }))
}

/// The jobs that the bed runs with a minor version, and the witnesses that it has there.
fn jobs(minor: u32) -> (Witnesses, &'static [&'static str]) {
    const RING: &str = "--ranks 4 --mode processes --bytes 1048576 --channels 2 \
         --ops allreduce,allgather,reducescatter,broadcast,reduce,sendrecv,alltoall";
    const TREE: &str = "--ranks 4 --algo tree --bytes 3000000 --iters 2";
    const PAT: &str = "--ranks 5 --algo pat --ops allgather,reducescatter --bytes 100000";
    match minor {
        23.. => (Witnesses::All, &[RING, TREE, PAT]),
        20.. => (Witnesses::Device, &[RING, TREE]),
        // How the channels of a tree take turns is not emulated for these versions.
        _ => (Witnesses::Device, &[RING]),
    }
}
