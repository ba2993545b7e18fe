//! Counts and frames are those of the independent reader.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::{Read as _, Write as _},
    path::{Path, PathBuf},
};

use flate2::{Compression, read::GzDecoder, write::GzEncoder};
use serde_json::{Value, json};

use crate::run::{has_python, json, kineto, python, written};

const ALL_REDUCE: &str = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)";

/// What is asked of each trace.
fn questions(trace: &str) -> Vec<Vec<String>> {
    let mut questions = vec![vec![], vec!["--kernel-name".to_owned(), ALL_REDUCE.to_owned()]];
    let mut ask = |arguments: &[&str]| {
        let kernel = ["--kernel-name", "NCCLdevKernel%"];
        questions.push(kernel.iter().chain(arguments).map(|&argument| argument.to_owned()).collect());
    };
    for depth in ["0", "1", "5", "99"] {
        ask(&["--stack-depth", depth]);
    }
    for function in ["%evaluate", "%: step", "c10d::allreduce_"] {
        for index in ["0", "1"] {
            ask(&["--function-name", function, "--index", index]);
        }
    }
    ask(&["--function-name", "prof.py(37): <module>"]);
    let begin: i64 = if trace == "ddp" { 4_502_092_757_360_818 } else { 4_502_111_769_189_588 };
    for (from, duration) in [(0, 10_000_000), (4_000_000, 4_000_000), (8_000_000, 12_345_678), (0, 0)] {
        ask(&["--start-ts", &(begin + from).to_string(), "--duration", &duration.to_string()]);
    }
    // Windows overrule functions.
    ask(&["--start-ts", &begin.to_string(), "--duration", "6000000", "--function-name", "%evaluate"]);
    // Every kernel: torch's too.
    questions.push(["--kernel-name", "%"].map(str::to_owned).to_vec());
    questions
}

fn unpacked(trace: &Path) -> Vec<u8> {
    let mut bytes = Vec::new();
    GzDecoder::new(File::open(trace).unwrap()).read_to_end(&mut bytes).unwrap();
    bytes
}

/// The same trace in all forms.
fn forms(trace: &str, folder: &Path) -> Vec<PathBuf> {
    let kineto = kineto(trace);
    let plain = unpacked(&kineto);
    let path = |name: &str| folder.join(name);
    fs::write(path("plain.json"), &plain).unwrap();
    // Chrome's other form, with flows and without correlations.
    let mut document: Value = serde_json::from_slice(&plain).unwrap();
    for event in document["traceEvents"].as_array_mut().unwrap() {
        if let Some(arguments) = event.get_mut("args").and_then(Value::as_object_mut) {
            arguments.remove("correlation");
        }
    }
    fs::write(path("flows.trace.json"), document["traceEvents"].to_string()).unwrap();
    let mut forms = vec![kineto.clone(), path("plain.json"), path("flows.trace.json")];
    for form in ["plain", "interned", "compressed"] {
        let perfetto = path(form).with_extension("perfetto-trace");
        python("to_perfetto.py", &[form, kineto.to_str().unwrap(), perfetto.to_str().unwrap()]);
        forms.push(perfetto);
    }
    let mut compressed = GzEncoder::new(File::create(path("plain.pb.gz")).unwrap(), Compression::fast());
    compressed.write_all(&fs::read(path("plain.perfetto-trace")).unwrap()).unwrap();
    compressed.finish().unwrap();
    forms.push(path("plain.pb.gz"));
    forms
}

#[test]
fn stacks_are_those_of_an_independent_reader() {
    if !has_python() {
        return;
    }
    for trace in ["ddp", "graph"] {
        let folder = tempfile::tempdir().unwrap();
        let forms = forms(trace, folder.path());
        let (mut kernels, mut empty) = (0, 0);
        let questions = questions(trace);
        for (number, question) in questions.iter().enumerate() {
            let question: Vec<_> = question.iter().map(String::as_str).collect();
            let kineto = kineto(trace);
            let arguments = [&[kineto.to_str().unwrap()], &*question].concat();
            let expected: Value = serde_json::from_str(&python("reader.py", &arguments)).unwrap();
            for (form, path) in forms.iter().enumerate() {
                // Kineto's own and Perfetto's usual form answer all; the others some, and the last, of all
                // kernels.
                if form % 4 == 0 || (number + form) % 4 == 0 || number + 1 == questions.len() {
                    let found = json(path, &question);
                    assert!(
                        found == expected,
                        "{} {question:?}: {found:#} and not {expected:#}",
                        path.display()
                    );
                }
            }
            kernels += expected["kernels"].as_u64().unwrap();
            empty += usize::from(expected["stacks"].as_array().unwrap().is_empty());
        }
        // A packet of each writer needs one that was lost.
        let (_, said) = written(&forms[4], &[]);
        assert!(said.contains("packets could not be read, because others were lost"), "{said}");
        // The questions say something.
        assert!(kernels > 300 && empty < 6, "{trace}: {kernels} {empty}");
    }
}

#[test]
fn text_is_that_of_the_call_stack_analyzer() {
    if !has_python() {
        return;
    }
    let trace = kineto("graph");
    let kernel = ["--kernel-name", ALL_REDUCE];
    let expected = python("reader.py", &[&[trace.to_str().unwrap(), "--text"], &kernel[..]].concat());
    let (text, said) = written(&trace, &kernel);
    assert_eq!(text, expected);
    assert!(text.contains("\n ->\ncudaGraphLaunch\nAppeared 6 times\n\n"), "{text}");
    assert!(said.contains("6 kernels were launched by replays of graphs"), "{said}");
}

#[test]
fn folded_lines_and_profiles_say_the_same_as_json() {
    let trace = kineto("ddp");
    let kernel = ["--kernel-name", "ncclDevKernel%"];
    let stacks = json(&trace, &kernel)["stacks"].as_array().unwrap().clone();
    let counts = |frames: &dyn Fn(&Value) -> String| -> BTreeMap<String, u64> {
        stacks.iter().map(|stack| (frames(&stack["frames"]), stack["count"].as_u64().unwrap())).collect()
    };
    let names = |frames: &Value| -> Vec<String> {
        frames.as_array().unwrap().iter().map(|name| name.as_str().unwrap().to_owned()).collect()
    };
    let (folded, _) = written(&trace, &[&kernel[..], &["--folded"]].concat());
    let lines = folded.lines().map(|line| line.rsplit_once(' ').unwrap());
    let found: BTreeMap<_, _> =
        lines.map(|(stack, count)| (stack.to_owned(), count.parse().unwrap())).collect();
    assert_eq!(found, counts(&|frames| names(frames).join(";")));

    if !has_python() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let profile = folder.path().join("profile.pb.gz");
    let (nothing, said) =
        written(&trace, &[&kernel[..], &["--pprof", "--output", profile.to_str().unwrap()]].concat());
    assert!(nothing.is_empty() && said.contains("Results written to: "), "{said}");
    let read: Value = serde_json::from_str(&python("read_pprof.py", &[profile.to_str().unwrap()])).unwrap();
    assert_eq!((&read["type"], &read["unit"]), (&json!("kernels"), &json!("count")));
    // As the trace has them: FILE(LINE): FUNCTION.
    let shown = |frame: &Value| match (frame[0].as_str().unwrap(), frame[1].as_str().unwrap(), &frame[2]) {
        (function, "", line) => {
            assert_eq!(line, 0);
            function.to_owned()
        }
        (function, file, line) => format!("{file}({line}): {function}"),
    };
    let found: BTreeMap<String, u64> = read["stacks"]
        .as_array()
        .unwrap()
        .iter()
        .map(|stack| {
            let frames: Vec<_> = stack["frames"].as_array().unwrap().iter().map(shown).collect();
            (frames.join(";"), stack["count"].as_u64().unwrap())
        })
        .collect();
    assert_eq!(found, counts(&|frames| names(frames).join(";")));
    let with_lines = read["stacks"].to_string().matches("prof.py\",10]").count();
    assert_eq!(with_lines, 1, "{read:#}");
}
