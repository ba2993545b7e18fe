//! The programs in dist/alerts, which tell others of an alert: run on an event, against a server of this host; and
//! Prometheus' own word on the rules in dist/prometheus.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::TcpListener,
    os::unix::fs::PermissionsExt as _,
};

use ncclflow_e2e::harness::prelude::*;

/// An event as `--exec` gets it, with text that a tenant may have chosen.
fn event(event: &str) -> Value {
    json!({
        "ncclflow": "0.2.0", "schema": 1, "unixTimeNs": 1_700_000_000_000_000_000_u64, "host": "n1",
        "event": event, "kind": "hang", "alert": 3,
        "job": {"number": 2, "name": "17\"; $(touch x) `id` <!channel> \\", "user": "ann", "pids": [4242],
            "communicators": 1},
        "communicator": {"commHash": "0x1", "name": null, "nRanks": 2},
        "culprits": [{"rank": 1, "pid": 4242, "gpu": 0}], "waiting": [0], "seconds": 12.5,
        "sentence": "stuck: \"tp\" & 'pp' wait for rank 1\n", "dump": "/var/lib/ncclflow/dumps/alert-1",
    })
}

/// Runs a program with its address in a variable; gives the path and the body of its request.
fn told(name: &str, variables: &[(&str, &str)], event: &Value) -> (String, Value) {
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", server.local_addr().unwrap());
    let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../dist/alerts").join(name);
    let mut child = Command::new(program);
    child.stdin(Stdio::piped()).stdout(Stdio::null());
    for (variable, value) in variables {
        child.env(variable, value.replace("{}", &address));
    }
    let mut child = Killed(child.spawn().unwrap());
    let mut input = child.0.stdin.take().unwrap();
    input.write_all(event.to_string().as_bytes()).unwrap();
    drop(input);
    let (stream, _) = server.accept().unwrap();
    let mut stream = BufReader::new(stream);
    let (mut head, mut length) = (String::new(), 0);
    loop {
        let mut line = String::new();
        stream.read_line(&mut line).unwrap();
        if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().unwrap();
        }
        if line.trim().is_empty() {
            break;
        }
        head.push_str(&line);
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body).unwrap();
    stream.get_mut().write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").unwrap();
    assert!(child.0.wait().unwrap().success());
    let path = head.split(' ').nth(1).unwrap().to_owned();
    (path, serde_json::from_slice(&body).unwrap())
}

fn are_there() -> bool {
    let is_there = |name: &str| Command::new(name).arg("--version").output().is_ok();
    need("curl", is_there("curl"), "install curl") && need("jq", is_there("jq"), "install jq")
}

#[test]
fn slack_is_told_in_one_text() {
    if !are_there() {
        return;
    }
    let (path, body) = told("slack", &[("SLACK_WEBHOOK", "{}/services/T/B/X")], &event("begin"));
    assert_eq!(path, "/services/T/B/X");
    let said = text(&body["text"]);
    assert!(said.contains("*hang* begin on n1") && said.contains("alert-1"), "{said}");
    assert!(said.contains("$(touch x) `id` &lt;!channel&gt;") && !said.contains("<!channel>"), "{said}");
}

#[test]
fn alertmanager_knows_an_alert_again_at_its_end() {
    if !are_there() {
        return;
    }
    let tell = |what: &str| told("alertmanager", &[("ALERTMANAGER", "{}")], &event(what));
    let ((path, begins), (_, ends)) = (tell("begin"), tell("end"));
    assert_eq!(path, "/api/v2/alerts");
    assert_eq!(begins[0]["labels"], ends[0]["labels"]);
    assert_eq!(begins[0]["labels"]["alertname"], "ncclflow_hang");
    let mut other = event("end");
    other["alert"] = json!(4);
    let (_, other) = told("alertmanager", &[("ALERTMANAGER", "{}")], &other);
    assert_ne!(begins[0]["labels"], other[0]["labels"], "the end of another alert does not end this one");
    assert_eq!(
        (&begins[0]["startsAt"], &begins[0]["endsAt"]),
        (&json!("2023-11-14T22:13:20Z"), &json!("2023-11-15T22:13:20Z"))
    );
    assert_eq!(ends[0]["endsAt"], "2023-11-14T22:13:20Z");
}

#[test]
fn a_page_is_resolved_by_the_end() {
    if !are_there() {
        return;
    }
    let tell = |what: &str| told("pagerduty", &[("PAGERDUTY", "{}"), ("PAGERDUTY_KEY", "k")], &event(what));
    let ((path, begins), (_, ends)) = (tell("begin"), tell("end"));
    assert_eq!((path.as_str(), &begins["routing_key"]), ("/v2/enqueue", &json!("k")));
    assert_eq!((&begins["event_action"], &ends["event_action"]), (&json!("trigger"), &json!("resolve")));
    assert_eq!(
        (&begins["dedup_key"], &ends["dedup_key"]),
        (&json!("ncclflow/n1/2/3"), &json!("ncclflow/n1/2/3"))
    );
    assert_eq!(begins["payload"]["custom_details"]["culprits"][0]["rank"], 1);
}

/// kubectl is a script that lists two pods and keeps what is to be made.
#[test]
fn an_alert_is_an_event_at_its_pod() {
    if !are_there() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let (made, words) = (folder.path().join("made"), folder.path().join("words"));
    let pods = json!({"items": [
        {"metadata": {"name": "other-0", "namespace": "team-b", "uid": "22222222-0000-4000-8000-000000000000"}},
        {"metadata": {"name": "train-0", "namespace": "team-a", "uid": "11111111-0000-4000-8000-000000000000"}},
    ]});
    let script = format!(
        "#!/bin/sh\necho \"$*\" >> {words}\ncase $1 in get) echo '{pods}';; *) cat > {made};; esac\n",
        words = words.display(),
        made = made.display()
    );
    let kubectl = folder.path().join("kubectl");
    fs::write(&kubectl, script).unwrap();
    fs::set_permissions(&kubectl, fs::Permissions::from_mode(0o755)).unwrap();
    let tell = |event: &Value| {
        let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../dist/alerts/kubernetes");
        let path = format!("{}:{}", folder.path().display(), std::env::var("PATH").unwrap());
        let mut child = Command::new(program);
        child.stdin(Stdio::piped()).stdout(Stdio::null()).env("PATH", path);
        let mut child = Killed(child.spawn().unwrap());
        child.0.stdin.take().unwrap().write_all(event.to_string().as_bytes()).unwrap();
        assert!(child.0.wait().unwrap().success());
    };
    let mut hang = event("begin");
    tell(&hang);
    assert!(!words.exists(), "it is of no pod");
    hang["job"]["pod"] = json!("11111111-0000-4000-8000-000000000000");
    tell(&hang);
    let told = read_json(&made);
    assert_eq!(
        told["involvedObject"],
        json!({"apiVersion": "v1", "kind": "Pod", "namespace": "team-a", "name": "train-0",
            "uid": "11111111-0000-4000-8000-000000000000"})
    );
    assert_eq!((&told["metadata"]["namespace"], &told["kind"]), (&json!("team-a"), &json!("Event")));
    assert_eq!((&told["type"], &told["reason"]), (&json!("Warning"), &json!("NcclHang")));
    assert_eq!(told["message"], "begin: stuck: \"tp\" & 'pp' wait for rank 1\n");
    assert_eq!(told["lastTimestamp"], "2023-11-14T22:13:20Z");
    let words = fs::read_to_string(&words).unwrap();
    assert_eq!(words, "get pods --all-namespaces --output=json\ncreate --filename=-\n");
    fs::remove_file(&made).unwrap();
    hang["job"]["pod"] = json!("33333333-0000-4000-8000-000000000000");
    tell(&hang);
    assert!(!made.exists(), "its pod is gone");
}

/// What ncclflow itself does not see has no job.
#[test]
fn an_alert_without_a_job_is_told_too() {
    if !are_there() {
        return;
    }
    let mut blind = event("begin");
    (blind["kind"], blind["job"]) = (json!("blind"), Value::Null);
    let (_, body) = told("slack", &[("SLACK_WEBHOOK", "{}/x")], &blind);
    assert!(text(&body["text"]).contains("*blind* begin on n1\n"), "{body}");
    let (_, body) = told("alertmanager", &[("ALERTMANAGER", "{}")], &blind);
    assert_eq!((&body[0]["labels"]["job"], &body[0]["labels"]["user"]), (&json!(""), &json!("")));
    let (_, body) = told("pagerduty", &[("PAGERDUTY", "{}"), ("PAGERDUTY_KEY", "k")], &blind);
    assert_eq!(body["dedup_key"], "ncclflow/n1/ncclflow/3");
}

/// The rules are those that Prometheus reads, and begin and end as their own tests say.
#[test]
fn prometheus_takes_the_rules_and_they_do_what_their_tests_say() {
    let promtool = std::env::var_os("NCCLFLOW_PROMTOOL").unwrap_or_else(|| "promtool".into());
    let is_there = Command::new(&promtool).arg("--version").output().is_ok();
    if !need("promtool", is_there, "run `cargo xtask test`, or install prometheus") {
        return;
    }
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../dist/prometheus");
    for words in [["check", "rules", "ncclflow.rules.yml"], ["test", "rules", "ncclflow.rules.test.yml"]] {
        let ran = run(Command::new(&promtool).args(words).current_dir(&folder));
        assert_eq!(ran.code(), Some(0), "{words:?}: {}{}", ran.stdout, ran.stderr);
    }
}
