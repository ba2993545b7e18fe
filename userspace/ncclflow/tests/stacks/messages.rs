//! What is said where there is nothing to show, or no trace.

use std::{
    fs::{self, File},
    io::{Read as _, Write as _},
    path::Path,
    process::Command,
};

use flate2::{Compression, read::GzDecoder, write::GzEncoder};

use crate::run::{json, kineto, refused, written};

#[test]
fn without_the_kernel_those_that_may_be_meant_are_listed() {
    let trace = kineto("ddp");
    let (text, _) = written(&trace, &[]);
    assert!(
        text.contains(
            "Could not find the kernel 'ncclDevKernel_Generic_1(ncclDevKernelArgsStorage<4096ul>)'"
        ),
        "{text}"
    );
    assert!(text.contains("Found 5 possibly relevant kernels"), "{text}");
    assert!(text.contains("\n18         ncclDevKernel_AllReduce_Sum_f32_RING_LL("), "{text}");
    assert!(!text.contains("sgemm_largek"), "{text}");
    // A machine reads a document, and a person what is said beside it.
    let (text, said) = written(&trace, &["--json"]);
    let document = serde_json::from_str::<serde_json::Value>(&text).unwrap();
    assert_eq!((&document["kernels"], &document["stacks"]), (&0.into(), &serde_json::json!([])));
    assert!(said.contains("possibly relevant kernels"), "{said}");
    let (text, _) = written(&trace, &["--start-ts", "0", "--duration", "10"]);
    assert!(text.contains("No kernels found in the window."), "{text}");
}

#[test]
fn a_kernel_without_its_launch_is_said_to_be_of_a_graph() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trace.json");
    let kernel = |ts| {
        format!(
            r#"{{"ph":"X","cat":"kernel","name":"nccl\u001b[31mK","pid":0,"tid":7,"ts":{ts},"dur":1,"args":{{"correlation":{ts}}}}}"#
        )
    };
    let launch = |tid| {
        format!(
            r#"{{"ph":"X","cat":"cuda_runtime","name":"cudaLaunchKernel","pid":9,"tid":{tid},"ts":2,"dur":1,"args":{{"correlation":3}}}}"#
        )
    };
    let name = ["--kernel-name", "nccl\u{1b}[31mK"];
    fs::write(&path, format!("[{}]", kernel(3))).unwrap();
    let (text, _) = written(&path, &name);
    assert!(text.contains("likely launched as part of a graph without tracking data"), "{text}");
    // Another name: this one is listed, without what a terminal would obey.
    let (text, _) = written(&path, &["--kernel-name", "x"]);
    assert!(text.contains("\n1          nccl\u{fffd}[31mK\n"), "{text:?}");
    fs::write(&path, format!("[{},{},{}]", kernel(3), kernel(4), launch(1))).unwrap();
    let (text, said) = written(&path, &name);
    assert_eq!(text, "cudaLaunchKernel\nAppeared 1 times\n\n");
    assert!(
        said.contains("1 kernels of that name are left out: the trace does not have what launched them"),
        "{said}"
    );
    // The traces of two processes in one file.
    fs::write(&path, format!("[{},{},{}]", kernel(3), launch(1), launch(2))).unwrap();
    let (text, said) = written(&path, &name);
    assert!(text.contains("several calls may have launched it"), "{text}");
    assert!(said.contains("1 kernels of that name are left out: several calls"), "{said}");
}

#[test]
fn several_calls_of_a_function_are_listed_and_one_is_taken() {
    let trace = kineto("ddp");
    let said = refused(&trace, &["--function-name", "%evaluate"], 1);
    assert!(said.contains("2 slices match `%evaluate`; --index N says which"), "{said}");
    assert!(said.contains("\n0        4502092768126668     1173358              4502092769300026     prof.py(23): evaluate\n"), "{said}");
    assert!(said.contains("\n1        4502092773262560     1193987 "), "{said}");
    let said = refused(&trace, &["--function-name", "%evaluate", "--index", "2"], 1);
    assert!(said.contains("index 2 is out of range"), "{said}");
    let said = refused(&trace, &["--function-name", "nobody"], 1);
    assert!(said.contains("no slice on a thread of the trace is named `nobody`"), "{said}");
    // What is on a device is no function, though it has the name of one.
    let said = refused(&trace, &["--function-name", "nccl:coalesced"], 1);
    assert!(said.contains("2 slices match"), "{said}");
    let window = ["--function-name", "%evaluate", "--index", "1", "--kernel-name", "nccl%"];
    let (_, said) = written(&trace, &window);
    assert!(said.contains("--start-ts 4502092773262560 --duration 1193987"), "{said}");
    let times = ["--start-ts", "4502092773262560", "--duration", "1193987", "--kernel-name", "nccl%"];
    assert_eq!(json(&trace, &window), json(&trace, &times));
    // One call only needs no index.
    let (_, said) = written(&trace, &["--function-name", "prof.py(37): <module>"]);
    assert!(said.contains("window: prof.py(37): <module>: --start-ts 4502092757914202"), "{said}");
}

#[test]
fn wrong_usage() {
    let trace = kineto("ddp");
    for arguments in [
        &["--index", "1"][..],
        &["--start-ts", "1"],
        &["--duration", "1"],
        &["--json", "--folded"],
        &["--stack-depth", "-1"],
        &["--start-ts", "1.5", "--duration", "1"],
    ] {
        refused(&trace, arguments, 2);
    }
    let help = Command::new(env!("CARGO_BIN_EXE_ncclflow")).args(["help", "stacks"]).output().unwrap();
    let help = String::from_utf8(help.stdout).unwrap();
    // In lines as wide as the terminal.
    let help = help.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(help.contains("[default: ncclDevKernel_Generic_1(ncclDevKernelArgsStorage<4096ul>)]"), "{help}");
    assert!(help.contains("[default: 12]") && help.contains("Examples:"), "{help}");
}

fn compressed(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

#[test]
fn what_is_empty_cut_or_no_trace_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trace");
    let said = |bytes: &[u8]| {
        fs::write(&path, bytes).unwrap();
        refused(&path, &["--json"], 1)
    };
    let mut json = Vec::new();
    GzDecoder::new(File::open(kineto("ddp")).unwrap()).read_to_end(&mut json).unwrap();
    for (bytes, words) in [
        (&b""[..], "the trace is empty"),
        (b" \n ", "not a trace"),
        (b"\x89PNG\r\n\x1a\n", "not a trace"),
        (b"{\"a\": 1}", "this JSON has no `traceEvents`"),
        (b"\n\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", "not a trace of Perfetto's"),
        (b"\nhello", "packet"),
        (&compressed(b""), "the trace is empty"),
        (&compressed(b"hello"), "not a trace"),
    ] {
        let said = said(bytes);
        assert!(said.contains(words) && said.contains("trace`"), "{bytes:?}: {said}");
    }
    let whole = compressed(&json);
    for cut in [2, 3, 10, 100] {
        let (plain, packed) = (said(&json[..json.len() / cut]), said(&whole[..whole.len() / cut]));
        assert!(plain.contains("the trace is cut: it ends in the middle, after "), "{plain}");
        assert!(packed.contains("the trace is cut: it ends in the middle, after "), "{packed}");
    }
    // All events are there, and the end of the document is not.
    assert!(said(json.trim_ascii_end().strip_suffix(b"}").unwrap()).contains("the trace is cut"));
    let damaged = [&whole[..whole.len() / 2], &[0; 64], &whole[whole.len() / 2..]].concat();
    assert!(said(&damaged).contains("trace`: after "), "{}", said(&damaged));
    let said = refused(folder.path(), &[], 1);
    assert!(said.contains("has no recording: neither it nor a folder in it contains `recording/`"), "{said}");
    let said = refused(&folder.path().join("nothing"), &[], 1);
    assert!(said.contains("cannot open the trace"), "{said}");
    let said = refused(Path::new("/dev/null"), &[], 1);
    assert!(said.contains("is not a regular file"), "{said}");
}

#[test]
fn a_file_is_written_whole_and_nothing_else_is_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("out.txt");
    let to = |path: &Path| ["--kernel-name", "nccl%", "--output", path.to_str().unwrap()].map(str::to_owned);
    let arguments = to(&path);
    let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
    fs::write(&path, "old").unwrap();
    let (nothing, _) = written(&kineto("ddp"), &arguments);
    assert!(nothing.is_empty());
    assert_eq!(fs::read_to_string(&path).unwrap(), written(&kineto("ddp"), &arguments[..2]).0);
    let link = folder.path().join("link");
    std::os::unix::fs::symlink(&path, &link).unwrap();
    for other in [&link, &folder.path().to_path_buf()] {
        let arguments = to(other);
        refused(&kineto("ddp"), &arguments.iter().map(String::as_str).collect::<Vec<_>>(), 1);
    }
    assert!(link.is_symlink());
    // A folder that is not there is made.
    let path = folder.path().join("new/folder/out.txt");
    let arguments = to(&path);
    written(&kineto("ddp"), &arguments.iter().map(String::as_str).collect::<Vec<_>>());
    assert!(path.exists());
}
