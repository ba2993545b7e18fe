//! Pages of real recordings, as a browser shows them (`tests/report/report_page.py`), against their lines.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use analysis::{
    export::{Choice, Format, Moment},
    report::{ReportOptions, Reported, report},
};
use serde_json::Value;
use test_support::has_browser;

use crate::traces::{recorded, run};

fn page(inputs: &[PathBuf], output: &Path, choice: Choice) -> Reported {
    let options = ReportOptions {
        inputs: inputs.to_vec(),
        output: output.to_path_buf(),
        choice,
        open: None,
        replace: false,
    };
    report(options, &mut |_| ()).unwrap()
}

/// Compares a page with lines. Gives what was compared.
fn compare(page: &Path, lines: &[&Path]) -> Value {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/report/report_page.py");
    // The first picture is there within two seconds; a machine that does other things gets more.
    let output =
        Command::new("python3").arg(script).arg(page).args(lines).args(["--seconds", "20"]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn pages_show_what_lines_say() {
    if !has_browser() {
        return;
    }
    for (name, records, is_measured) in [("net_steps", 45_000, true), ("nvlink_flow", 2_000, false)] {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        recorded(name).cut_to(records).record(&path("recorded"), 0..records);
        run(&[&path("recorded")], &path("lines"), Format::Jsonl, Choice::default());
        page(&[path("recorded")], &path("page.html"), Choice::default());
        let compared = compare(&path("page.html"), &[&path("lines")]);
        let of = |key: &str| compared[key].as_u64().unwrap_or(0);
        assert!(of("bars") > 50 && of("rings") > 1 && of("pairs") > 1 && of("kinds") > 3, "{compared}");
        assert_eq!(of("measured") > 50, is_measured, "{compared}");
        assert!(of("canvases") >= if is_measured { 5 } else { 4 }, "{compared}");
    }
}

/// Real jobs of four GPUs: `mm10` (rank 2 computes longer) and `gc` (rank 1 pauses 20 ms in every tenth of some
/// 444 iterations). Two jobs have a verdict each, and a picture of an iteration.
#[test]
fn a_page_of_two_jobs_has_a_verdict_and_an_iteration_of_each() {
    if !has_browser() {
        return;
    }
    let slow = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/traces/slow");
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let data = |inputs: &[PathBuf], name: &str| -> Value {
        page(inputs, &path(name), Choice::default());
        let page = std::fs::read_to_string(path(name)).unwrap();
        let (_, rest) = page.split_once(r#"<script type="application/json" id="data">"#).unwrap();
        serde_json::from_str(rest.split_once("</script>").unwrap().0).unwrap()
    };
    let one = data(&[slow.join("gc")], "gc.html");
    assert_eq!(one["jobs"].as_array().unwrap().len(), 1);
    let stalls = one["verdict"]["stalls"].as_array().unwrap();
    let long: Vec<&Value> = stalls.iter().filter(|stall| stall[3].as_u64().unwrap() > 15_000).collect();
    assert!((35..=46).contains(&long.len()), "{} pauses", long.len());
    assert!(long.iter().all(|stall| stall[1] == 1), "{long:?}");
    let both = data(&[slow.join("mm10"), slow.join("gc")], "both.html");
    let jobs = both["jobs"].as_array().unwrap();
    let marked: Vec<&Value> = jobs.iter().map(|job| &job["iterations"][0]["marked"]).collect();
    assert_eq!(marked, [&serde_json::json!([2]), &serde_json::json!([1])], "{jobs:?}");
    for job in jobs {
        assert_eq!(job["consistent"], false);
        assert_eq!(job["comms"].as_array().unwrap().len(), 1);
        assert_eq!(job["iterations"][0]["parts"].as_array().unwrap().len(), 4);
    }
    assert_ne!(jobs[0]["comms"], jobs[1]["comms"]);
    assert!(both["verdict"]["sentence"].as_str().unwrap().starts_with("Job "), "{}", both["verdict"]);
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/report/report_page.py");
    let mut opened = Command::new("python3");
    let output = opened.arg(script).arg(path("both.html")).args(["--only-open", "--rounds", "1"]).output();
    let output = output.unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let opened: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&opened["parts"], &opened["headings"]), (&8.into(), &4.into()), "{opened}");
}

/// The verdict of a part is that of the part: where it begins and ends, nothing is missed.
#[test]
fn a_page_of_a_part_is_that_of_its_lines() {
    if !has_browser() {
        return;
    }
    let recorded = recorded("net_steps").cut_to(45_000);
    let (first, last) = recorded.span();
    let at = |quarter: u64| Some(Moment::Wall(first + (last - first) / 4 * quarter + recorded.offset()));
    let choice = Choice { from: at(1), to: at(3), ..Choice::default() };
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    recorded.record(&path("recorded"), 0..45_000);
    run(&[&path("recorded")], &path("lines"), Format::Jsonl, choice.clone());
    let made = page(&[path("recorded")], &path("page.html"), choice);
    let compared = compare(&path("page.html"), &[&path("lines")]);
    assert!(compared["bars"].as_u64().unwrap() > 20, "{compared}");
    assert!(!made.sentence.contains("not joined"), "{}", made.sentence);
}

#[test]
fn a_page_that_cannot_be_made_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let refused = |inputs: &[PathBuf], output: PathBuf| {
        let options = ReportOptions {
            inputs: inputs.to_vec(),
            output,
            choice: Choice::default(),
            open: None,
            replace: false,
        };
        format!("{:#}", report(options, &mut |_| ()).unwrap_err())
    };
    std::fs::create_dir(path("empty")).unwrap();
    let said = refused(&[path("empty")], path("page.html"));
    assert!(said.contains("has no recording"), "{said}");
    recorded("net_steps").cut_to(1000).record(&path("recorded"), 0..1000);
    std::fs::write(path("there.html"), "kept").unwrap();
    let said = refused(&[path("recorded")], path("there.html"));
    assert!(said.contains("exists"), "{said}");
    assert_eq!(std::fs::read_to_string(path("there.html")).unwrap(), "kept");
    let mut names: Vec<_> =
        std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["empty", "recorded", "there.html"]);
}
