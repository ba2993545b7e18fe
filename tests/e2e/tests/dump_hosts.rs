//! The commands of docs/DUMP.md for many hosts, as they are written there, with namespaces as hosts: each has a name, a
//! network, mounts and processes of its own, and one rank of a job. `ssh`, `srun` and `kubectl` are scripts that enter
//! them and behave as those do in what the commands use.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{env, os::unix::fs::PermissionsExt as _};

use ncclflow_e2e::harness::{job::COMES_TO_REST, namespaces::Namespaces, prelude::*};
use test_support::{
    documents::{Block, blocks},
    need_pythons,
    train::{ABSENT, start_rank},
};

const DOCUMENT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/DUMP.md");
const RANKS: u32 = 3;

/// As ssh: the words of the command are one line of shell on the other host.
const SSH: &str = r#"#!/bin/sh
while [ "${1#-}" != "$1" ]; do
    case $1 in
    --) shift; break;;
    -o) shift;;
    esac
    shift
done
host=$1; shift
exec nsenter --target "$(cat "$HOSTS/$host")" --all sh -c "$*"
"#;
/// As srun with `--label`: the command on each host, with the number of its task before each line.
const SRUN: &str = r#"#!/bin/bash
while [ "${1#-}" != "$1" ]; do
    case $1 in
    --) shift; break;;
    --jobid) shift;;
    --overlap|--label|--ntasks-per-node=1|--wait=0|--kill-on-bad-exit=0|--input=none) ;;
    *) echo "srun: what is $1?" >&2; exit 64;;
    esac
    shift
done
worst=0; tasks=; number=0
for host in $(ls "$HOSTS"); do
    (
        set -o pipefail
        SLURMD_NODENAME=$host nsenter --target "$(cat "$HOSTS/$host")" --all "$@" | sed -u "s/^/$number: /"
    ) & tasks="$tasks $!"; number=$((number + 1))
done
for task in $tasks; do wait "$task" || worst=$?; done
exit $worst
"#;
const SQUEUE: &str = r#"#!/bin/sh
ls "$HOSTS" | tr '\n' ,
"#;
/// As kubectl: a pod on each host.
const KUBECTL: &str = r#"#!/bin/sh
[ "$1" = --namespace=ncclflow ] || exit 64
shift
case $1 in
get) [ "$2 $3" = "pods --selector=app.kubernetes.io/name=ncclflow" ] || exit 64
    for host in $(ls "$HOSTS"); do echo "pod-$host $host Running"; done;;
exec) pod=${2#pod-}; [ "$3" = -- ] || exit 64; shift 3
    exec nsenter --target "$(cat "$HOSTS/$pod")" --all "$@";;
*) exit 64;;
esac
"#;

/// Hosts with a rank each. All is gone when this is dropped.
struct Hosts {
    names: Vec<String>,
    ranks: Vec<Killed>,
    /// Goes after its ranks.
    _namespaces: Namespaces,
    folder: tempfile::TempDir,
}

impl Hosts {
    /// A host for each rank. `None`: a test that cannot run.
    fn start(python: &Path) -> Option<Self> {
        let (bed, nvml) = (programs::bed_library()?, programs::nvml_double()?);
        let nccl = programs::nccl("2.27.5-cu12")?;
        let namespaces = Namespaces::start(RANKS)?;
        let folder = tempfile::tempdir().unwrap();
        let mut hosts =
            Self { names: namespaces.names(), ranks: Vec::new(), _namespaces: namespaces, folder };
        for (rank, name) in (0..).zip(hosts.names.clone()) {
            let mut command = Command::new("ip");
            command.args(["netns", "exec", &name, "unshare", "--uts", "--pid", "--fork", "--kill-child"]);
            // The rank is the first process but one: what is first has the host's name set.
            command.args(["--mount-proc", "sh", "-c", "hostname \"$0\"; \"$@\"; :", &name]).arg(python);
            let more = ["--env", "NCCL_SOCKET_IFNAME=eth0"];
            let folder = hosts.folder.path();
            let started = start_rank(command, [&bed, &nccl, &nvml], folder, (rank, RANKS), &more);
            hosts.ranks.push(Killed(started.unwrap()));
        }
        hosts.write_down();
        Some(hosts)
    }

    /// Where the scripts find the hosts: a file of each name, with a process that is in it.
    fn write_down(&self) {
        let (known, scripts) = (self.folder.path().join("hosts"), self.folder.path().join("bin"));
        fs::create_dir(&known).unwrap();
        fs::create_dir(&scripts).unwrap();
        for (name, rank) in self.names.iter().zip(&self.ranks) {
            fs::write(known.join(name), first_inside(rank.pid()).to_string()).unwrap();
        }
        for (name, script) in [("ssh", SSH), ("srun", SRUN), ("squeue", SQUEUE), ("kubectl", KUBECTL)] {
            let path = scripts.join(name);
            fs::write(&path, script).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        }
    }

    /// Runs a recipe in a folder of its own, with `--json` for its last command, and gives what that prints and its exit
    /// code.
    fn run(&self, recipe: &str, ncclflow: &Path) -> (Value, Option<i32>, String) {
        let folder = tempfile::tempdir().unwrap();
        let script = ["--merge", "--hosts", "--slurm", "--k8s"].iter().fold(
            recipe.replace("node[01-16],gpu7", &self.names.join(",")),
            |script, option| {
                script.replace(&format!("ncclflow dump {option}"), &format!("ncclflow dump --json {option}"))
            },
        );
        let path = format!(
            "{}:{}:{}",
            self.folder.path().join("bin").display(),
            ncclflow.parent().unwrap().display(),
            env::var("PATH").unwrap_or_default()
        );
        let mut bash = Command::new("bash");
        bash.args(["-c", &script]).current_dir(folder.path()).env("PATH", path);
        bash.env("HOSTS", self.folder.path().join("hosts"));
        bash.env("NODES", self.names.join(" ")).env("JOB", "17");
        let ran = run(&mut bash);
        let json = serde_json::from_str(&ran.stdout).unwrap_or_default();
        (json, ran.code(), format!("{script}\n{}{}", ran.stdout, ran.stderr))
    }
}

/// The process that is first in the namespaces that `ip` and `unshare` have made.
fn first_inside(started: u32) -> u32 {
    let deadline = Instant::now() + Duration::from_mins(2);
    loop {
        let children =
            fs::read_to_string(format!("/proc/{started}/task/{started}/children")).unwrap_or_default();
        // With its mounts made: then its name is no longer unshare's.
        let inner = children.split_whitespace().next().and_then(|pid| pid.parse::<u32>().ok());
        let name =
            inner.and_then(|pid| fs::read_to_string(format!("/proc/{pid}/comm")).ok()).unwrap_or_default();
        if name.trim() == "sh" {
            return inner.unwrap();
        }
        assert!(Instant::now() < deadline, "no host came up: {children} {name}");
        thread::sleep(Duration::from_millis(20));
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        for rank in &mut self.ranks {
            rank.kill();
        }
    }
}

#[test]
fn the_commands_for_ssh_slurm_and_kubernetes_name_the_rank_on_another_host() {
    let (Some(ncclflow), Some(mut pythons), true) = (programs::ncclflow(), need_pythons(), root()) else {
        return;
    };
    let Some(hosts) = Hosts::start(&pythons.pop().unwrap().program) else { return };
    let document = fs::read_to_string(DOCUMENT).unwrap();
    let all = blocks(&document);
    let with = |start: &str| {
        let begins = |command: &String| command.trim_start().starts_with(start);
        let block: Option<&Block> = all.iter().find(|block| block.commands.iter().any(begins));
        block.unwrap_or_else(|| panic!("docs/DUMP.md has no commands with {start}"))
    };
    let mut recipes = with("ncclflow dump --slurm").commands.clone();
    assert_eq!(recipes.len(), 3, "{recipes:?}");
    recipes.push(with("ssh ").commands.join("\n"));
    let deadline = Instant::now() + Duration::from_secs(180);
    let mut was_wrong = false;
    for recipe in recipes {
        let (merged, code, said) = loop {
            let (merged, code, said) = hosts.run(&recipe, &ncclflow);
            // Until the ranks have come to rest.
            let verdict = &merged["communicators"][0]["verdict"];
            let is_settled = verdict["state"] == "stuck" && said.contains("load_batch");
            // A rank that stood for a moment on its way there is named, too: once.
            if is_settled && verdict["culprits"] != json!([ABSENT]) && !was_wrong {
                was_wrong = true;
                thread::sleep(COMES_TO_REST);
                continue;
            }
            if is_settled || Instant::now() > deadline {
                break (merged, code, said);
            }
        };
        let list =
            |value: &Value| value.as_array().unwrap_or_else(|| panic!("nothing was merged: {said}")).clone();
        let named = list(&merged["hosts"]);
        let mut names: Vec<&str> = named.iter().filter_map(Value::as_str).collect();
        names.sort_unstable();
        assert_eq!(names, hosts.names, "{said}");
        let verdict = &merged["communicators"][0]["verdict"];
        assert_eq!((&verdict["state"], code), (&"stuck".into(), Some(3)), "{said}");
        assert_eq!(verdict["culprits"], json!([ABSENT]), "{said}");
        let ranks = list(&merged["communicators"][0]["ranks"]);
        let places: Vec<(u64, &str)> =
            ranks.iter().map(|rank| (number(&rank["rank"]), text(&rank["host"]))).collect();
        let expected: Vec<(u64, &str)> = (0..).zip(hosts.names.iter().map(String::as_str)).collect();
        assert_eq!(places, expected, "{said}");
    }
}
