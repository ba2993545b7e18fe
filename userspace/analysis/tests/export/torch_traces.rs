//! Traces of torch's profiler beside ours: on one timeline for Perfetto, and as nodes for Chakra
//! (`tests/exports/torch_traces.py`).

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use analysis::export::{Choice, ExportOptions, Exported, Format, ViewOptions, export};
use serde_json::Value;

use crate::{
    traces::{recorded, run},
    views::{compare, has_chakra, has_perfetto},
};

fn trace(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/traces").join(name)
}

fn script(arguments: &[&Path]) -> Value {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/exports/torch_traces.py");
    let Output { status, stdout, stderr } =
        Command::new("python3").arg(script).args(arguments).output().unwrap();
    assert!(status.success(), "{}", String::from_utf8_lossy(&stderr));
    serde_json::from_slice(&stdout).unwrap_or_default()
}

/// Exports with a trace of torch.
fn with(recorded: &Path, output: &Path, format: Format, torch: &Path) -> anyhow::Result<Exported> {
    let traces = vec![torch.to_path_buf()];
    let view = match format {
        Format::Perfetto => ViewOptions { manifest: traces, ..ViewOptions::default() },
        _ => ViewOptions { kineto: traces, ..ViewOptions::default() },
    };
    let (inputs, output) = (vec![recorded.to_path_buf()], output.to_path_buf());
    export(ExportOptions { inputs, output, format, view, choice: Choice::default() }, &mut |_| ())
}

#[test]
fn a_trace_of_torch_lies_beside_ours_at_its_own_time() {
    if !has_perfetto() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let recorded = recorded("net_steps").cut_to(20_000);
    recorded.record(&path("recorded"), 0..20_000);
    // Of another run of the job, at the time of this one.
    let (torch, shifted) = (trace("kineto_ddp_rank0.json.gz"), path("shifted.json.gz"));
    let begin = (recorded.span().0 + recorded.offset()).to_string();
    script(&[Path::new("shift"), &torch, &shifted, Path::new(&begin)]);
    with(&path("recorded"), &path("job.tar"), Format::Perfetto, &shifted).unwrap();
    let noted = trace("fr_ddp_rank0.pkl.gz");
    let compared = script(&[Path::new("manifest"), &path("job.tar"), &shifted, &torch, &noted]);
    assert_eq!(compared["calls"], 20, "{compared}");
    // What is in the archive is the trace that we write without it.
    run(&[&path("recorded")], &path("lines"), Format::Jsonl, Choice::default());
    let own = compare("perfetto_trace.py", &path("job.pftrace"), &[path("lines")], &[]);
    assert!(own["messages"].as_u64().unwrap() > 1000, "{own}");

    fs::write(
        path("old.json"),
        r#"{"traceEvents":[{"ph":"X","name":"a","pid":1,"tid":1,"ts":12.5,"dur":1}]}"#,
    )
    .unwrap();
    let bad = [
        (path("old.json"), "baseTimeNanoseconds"),
        (path("missing.json"), "cannot open"),
        (torch, "is of another time"),
    ];
    for (bad, word) in bad {
        let error = with(&path("recorded"), &path("bad.tar"), Format::Perfetto, &bad).unwrap_err();
        assert!(format!("{error:#}").contains(word), "{error:#}");
        assert!(!path("bad.tar").exists());
    }
}

#[test]
fn kernels_of_torch_are_nodes_and_nccls_give_their_times() {
    if !has_chakra() {
        return;
    }
    let recorded = recorded("net_steps").cut_to(60_000);
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    recorded.record(&path("recorded"), 0..60_000);
    run(&[&path("recorded")], &path("lines"), Format::Jsonl, Choice::default());

    // A real trace, of another run: its kernels, at its times.
    let (first, last) = recorded.span();
    let middle = (first + (last - first) / 2 + recorded.offset()).to_string();
    let real = trace("kineto_ddp_rank0.json.gz");
    script(&[Path::new("shift"), &real, &path("real.json.gz"), Path::new(&middle)]);
    with(&path("recorded"), &path("real"), Format::Chakra, &path("real.json.gz")).unwrap();
    let compared = script(&[Path::new("chakra"), &path("real"), &path("real.json.gz")]);
    // 186 kernels of which 20 are NCCL's, 38 copies, 24 fills.
    assert_eq!(compared["compute"], 186 - 20 + 38 + 24, "{compared}");

    // One that was made of the lines: each collective has its kernel.
    let made = script(&[Path::new("make"), &path("lines"), &path("made.json")]);
    let exported = with(&path("recorded"), &path("made"), Format::Chakra, &path("made.json")).unwrap();
    let compared = script(&[Path::new("chakra"), &path("made"), &path("made.json"), &path("lines")]);
    assert!(compared["timed"].as_u64().unwrap() > 50, "{compared}");
    assert_eq!(compared["timed"], made["collectives"]);
    let said = format!("{0} of the {0} kernels of NCCL", made["collectives"]);
    assert!(exported.notes.iter().any(|note| note.contains(&said)), "{:?}", exported.notes);

    // One of another time, as of another run, is no part of the job.
    let error = with(&path("recorded"), &path("other"), Format::Chakra, &real).unwrap_err();
    assert!(format!("{error:#}").contains("is of another time"), "{error:#}");
    assert!(!path("other").exists());

    let text = fs::read_to_string(path("made.json")).unwrap();
    fs::write(path("ninth.json"), text.replace("\"rank\": 0", "\"rank\": 9")).unwrap();
    let error = with(&path("recorded"), &path("ninth"), Format::Chakra, &path("ninth.json")).unwrap_err();
    assert!(format!("{error:#}").contains("rank 9 of the job, which has no node"), "{error:#}");
}
