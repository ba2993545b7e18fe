//! The ways to other hosts: which program runs, with which words. No word of a user or of another program can
//! be taken for an option, and none is read by a shell unless it is quoted.

use std::{ffi::OsString, path::Path, process::Command, time::Duration};

use anyhow::{Result, bail};

use super::{
    children::{Call, End, Limits, Outcome, run},
    host_names::{self, is_host},
    not_read::HostsNotRead,
    output::{Answer, Labelled, Sink},
};

/// Programs that run at once: `ssh` takes 10 MB, `kubectl` five times as much.
const SSH_AT_ONCE: usize = 256;
const KUBECTL_AT_ONCE: usize = 32;
/// Time that squeue and `kubectl get` have.
const TO_LIST: Duration = Duration::from_secs(30);
/// Has each task of a step say first on which host it runs.
const NAMED: &str = r#"printf '%s\n' "${SLURMD_NODENAME:-$(hostname)}"; exec "$@""#;

/// Hosts that are asked.
#[derive(Clone, Debug)]
pub enum Whom {
    /// By ssh.
    Hosts(Vec<String>),
    /// The nodes of a job, by srun.
    Slurm(String),
    /// Pods in which ncclflow runs, by `kubectl exec`.
    Pods(Selector),
}

/// Pods of Kubernetes, by their labels.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Selector {
    /// Namespace; `None`: that of kubectl's own configuration.
    pub namespace: Option<String>,
    pub labels: String,
}

impl Selector {
    /// Parses `[NAMESPACE/]LABELS`. Labels can have a prefix with a slash, too: a namespace has no dot and no
    /// `=`, and a prefix has a dot.
    pub fn parse(text: &str) -> Result<Self, String> {
        let is_namespace = |word: &str| {
            (1..=63).contains(&word.len())
                && word.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
                && !word.starts_with('-')
        };
        let (namespace, labels) = match text.split_once('/') {
            Some((namespace, labels)) if is_namespace(namespace) => (Some(namespace.to_owned()), labels),
            _ => (None, text),
        };
        let is_known = |c: char| c.is_ascii_alphanumeric() || "._-/=!,() ".contains(c);
        if labels.is_empty() || !labels.chars().all(is_known) {
            return Err("must be labels, as app=trainer or NAMESPACE/app=trainer".to_owned());
        }
        Ok(Self { namespace, labels: labels.to_owned() })
    }
}

/// Parses the number of a job of Slurm: `4711`, `4711_3`, `4711+1`.
pub fn slurm_job(text: &str) -> Result<String, String> {
    let parts: Vec<&str> = text.split(['_', '+']).collect();
    let is_number =
        |part: &&str| (1..=10).contains(&part.len()) && part.bytes().all(|byte| byte.is_ascii_digit());
    if parts.len() <= 2 && parts.iter().all(is_number) {
        Ok(text.to_owned())
    } else {
        Err("must be the number of a job, as squeue shows it".to_owned())
    }
}

/// A program and its first words.
#[derive(Clone, Debug)]
pub(super) struct Program {
    words: Vec<String>,
}

impl Program {
    fn new(via: Option<&[String]>, usual: &str) -> Self {
        Self { words: via.map_or_else(|| vec![usual.to_owned()], <[String]>::to_vec) }
    }

    pub(super) fn name(&self) -> &str {
        self.words.first().map_or("", String::as_str)
    }

    fn command<S: Into<OsString>>(&self, words: impl IntoIterator<Item = S>) -> Command {
        let mut command = Command::new(self.name());
        command.args(self.words.iter().skip(1)).args(words.into_iter().map(Into::into));
        command
    }
}

/// All that is run for one question.
pub(super) struct Asked {
    pub(super) calls: Vec<Call>,
    pub(super) program: Program,
    pub(super) at_once: usize,
    /// Names of all hosts, where they are known before one has answered.
    pub(super) hosts: Vec<String>,
}

impl Whom {
    /// Makes the calls that run `words` on each host. `via` stands for the usual program. Hosts that need not
    /// be asked are added to `not_read`.
    ///
    /// # Errors
    /// Nobody says which hosts there are.
    pub(super) fn calls(
        &self,
        via: Option<&[String]>,
        words: &[String],
        limit: Duration,
        not_read: &mut HostsNotRead,
    ) -> Result<Asked> {
        match self {
            Self::Hosts(hosts) => Ok(by_ssh(hosts, Program::new(via, "ssh"), words)),
            Self::Slurm(job) => Ok(by_srun(job, Program::new(via, "srun"), words, limit)),
            Self::Pods(selector) => {
                by_kubectl(selector, Program::new(via, "kubectl"), words, limit, not_read)
            }
        }
    }
}

/// ssh gives the words to a shell of the other host. Options of ours stand behind the user's: ssh takes the
/// first of each.
fn by_ssh(hosts: &[String], program: Program, words: &[String]) -> Asked {
    const OPTIONS: [&str; 6] = [
        // Nobody is asked for a password.
        "BatchMode=yes",
        "ConnectTimeout=10",
        "ForwardAgent=no",
        "ForwardX11=no",
        "ClearAllForwardings=yes",
        "LogLevel=ERROR",
    ];
    let quoted: Vec<String> = words.iter().map(|word| quoted(word)).collect();
    let line = quoted.join(" ");
    let calls = hosts.iter().map(|host| {
        let mut command = program.command(["-T"]);
        for option in OPTIONS {
            command.args(["-o", option]);
        }
        command.args(["--", host, &line]);
        Call { host: host.clone(), command, sink: Sink::Host(Answer::default()) }
    });
    Asked { calls: calls.collect(), at_once: SSH_AT_ONCE, hosts: hosts.to_vec(), program }
}

/// Quotes a word for a POSIX shell, if it needs it.
fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "._-/=:,+@".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

/// One step of the job runs on all its nodes: a step for each node would load Slurm's controller. The tasks'
/// lines come back with their numbers.
fn by_srun(job: &str, program: Program, words: &[String], limit: Duration) -> Asked {
    let mut command = program.command(["--jobid", job, "--overlap", "--ntasks-per-node=1", "--label"]);
    // A host that hangs is not cut off, and one that fails does not end the others.
    command.args(["--wait=0", "--kill-on-bad-exit=0", "--input=none", "--", "sh", "-c", NAMED, "sh"]);
    command.args(words);
    let call = Call { host: format!("job {job}"), command, sink: Sink::Tasks(Labelled::default()) };
    // Only to name the hosts that say nothing.
    let beside = Path::new(program.name()).with_file_name("squeue");
    let listing = Program { words: vec![beside.to_string_lossy().into_owned()] };
    let listing = listing.command(["--noheader", "--jobs", job, "--format=%N"]);
    let nodes = text_of(listing, "squeue", limit).ok();
    let hosts = nodes.and_then(|list| host_names::hosts(&list).ok()).unwrap_or_default();
    Asked { calls: vec![call], at_once: 1, hosts, program }
}

fn by_kubectl(
    selector: &Selector,
    program: Program,
    words: &[String],
    limit: Duration,
    not_read: &mut HostsNotRead,
) -> Result<Asked> {
    const COLUMNS: &str = "--output=custom-columns=A:.metadata.name,B:.spec.nodeName,C:.status.phase";
    let namespace = selector.namespace.iter().map(|namespace| format!("--namespace={namespace}"));
    let mut listing = program.command(namespace.clone());
    listing.args(["get", "pods", &format!("--selector={}", selector.labels), COLUMNS, "--no-headers"]);
    let listed = text_of(listing, program.name(), limit)?;
    let (mut calls, mut hosts) = (Vec::new(), Vec::new());
    for line in listed.lines().filter(|line| !line.trim().is_empty()) {
        let mut columns = line.split_whitespace();
        let (Some(pod), Some(node), Some(phase)) = (columns.next(), columns.next(), columns.next()) else {
            bail!("`{}` lists pods in another form than it was asked for", program.name());
        };
        // A pod without a node shows `<none>`.
        if phase != "Running" && is_host(pod) {
            not_read.add(pod, format!("the pod is {phase}"));
            continue;
        }
        if !(is_host(pod) && is_host(node)) || calls.len() >= host_names::MAX_HOSTS {
            bail!("`{}` lists pods in another form than it was asked for", program.name());
        }
        let mut command = program.command(namespace.clone());
        command.args(["exec", pod, "--"]).args(words);
        calls.push(Call { host: node.to_owned(), command, sink: Sink::Host(Answer::default()) });
        hosts.push(node.to_owned());
    }
    if calls.is_empty() {
        let of =
            selector.namespace.as_deref().map(|name| format!(" of namespace {name}")).unwrap_or_default();
        bail!("no pod{of} with {} is running: give the labels of ncclflow's DaemonSet", selector.labels);
    }
    Ok(Asked { calls, at_once: KUBECTL_AT_ONCE, hosts, program })
}

/// Runs a program to its end and returns what it printed.
fn text_of(command: Command, name: &str, limit: Duration) -> Result<String> {
    let limit = limit.min(TO_LIST);
    let call = Call { host: name.to_owned(), command, sink: Sink::Host(Answer::default()) };
    let mut ended = None;
    let take = |outcome| {
        ended = Some(outcome);
        Ok(())
    };
    run([call], Limits { at_once: 1, each: limit, all: limit }, take, |_| {})?;
    match ended {
        Some(Outcome { end: End::Exited(status), said: Sink::Host(answer), .. }) if status.success() => {
            Ok(String::from_utf8_lossy(&answer.bytes).into_owned())
        }
        Some(outcome) => bail!("{}", super::not_read::reason(&outcome, name)),
        None => bail!("`{name}` was not run"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(command: &Command) -> Vec<String> {
        let all = std::iter::once(command.get_program()).chain(command.get_args());
        all.map(|word| word.to_string_lossy().into_owned()).collect()
    }

    #[test]
    fn a_shell_of_another_host_reads_words_as_they_are() {
        for word in ["", "a b", "it's", "$(x)", "a\\b\n", "*", "~", "--comm=tp"] {
            let shell = Command::new("sh").args(["-c", &format!("printf %s {}", quoted(word))]).output();
            assert_eq!(String::from_utf8(shell.unwrap().stdout).unwrap(), word);
        }
        let via = ["ssh".to_owned(), "-J".to_owned(), "bastion".to_owned()];
        let calls = by_ssh(&["h1".into()], Program::new(Some(&via), "ssh"), &["ps".into(), "a b".into()]);
        let words = words(&calls.calls[0].command);
        assert_eq!(words[..4], ["ssh", "-J", "bastion", "-T"]);
        assert_eq!(words[words.len() - 3..], ["--", "h1", "ps 'a b'"]);
    }

    #[test]
    fn labels_may_have_a_prefix_and_a_namespace_before_it() {
        let parse = |text| Selector::parse(text).map(|it| (it.namespace, it.labels));
        let some = |namespace: &str, labels: &str| Ok((Some(namespace.to_owned()), labels.to_owned()));
        let none = |labels: &str| Ok((None, labels.to_owned()));
        assert_eq!(parse("ncclflow/app.kubernetes.io/name=x"), some("ncclflow", "app.kubernetes.io/name=x"));
        assert_eq!(parse("app.kubernetes.io/name=x"), none("app.kubernetes.io/name=x"));
        assert_eq!(parse("app=x,tier in (a, b)"), none("app=x,tier in (a, b)"));
        assert!(parse("").is_err() && parse("ns/").is_err() && parse("a=$(b)").is_err());
    }

    #[test]
    fn jobs_are_numbers() {
        assert!(["4711", "4711_3", "4711+1"].into_iter().all(|job| slurm_job(job).is_ok()));
        assert!(["", "-1", "1,2", "a", "1_2_3", "--x", "1 2"].into_iter().all(|job| slurm_job(job).is_err()));
    }
}
