//! What is said of a choice of processes: before anything is done, that this user may not trace; afterwards,
//! what there is where nothing was chosen.

use std::collections::BTreeMap;

use anyhow::{Result, bail};
use rustix::thread::{CapabilitySet, capabilities};

use flow::text::joined;
use inspect::{
    process::{Filter, Process, Users, denied_remedy, in_brackets},
    resolver::nccl_processes,
};

/// Most processes that are named.
pub(super) const MAX_NAMED: usize = 8;

/// Checks that this user may set probes at all, so that one line says it.
///
/// # Errors
/// It may not.
pub(super) fn may_trace() -> Result<()> {
    let Ok(sets) = capabilities(None) else { return Ok(()) };
    let needed = [(CapabilitySet::BPF, "CAP_BPF"), (CapabilitySet::PERFMON, "CAP_PERFMON")];
    let has = |capability| sets.effective.intersects(capability | CapabilitySet::SYS_ADMIN);
    let missing: Vec<&str> =
        needed.into_iter().filter(|(capability, _)| !has(*capability)).map(|(_, name)| name).collect();
    if !missing.is_empty() {
        let missing = joined(missing, " and ");
        bail!("tracing needs root: run it with sudo (it lacks {missing}; `ncclflow doctor` tells what else)");
    }
    Ok(())
}

/// Returns a user of a filter that nothing knows: neither a number nor a name in `/etc/passwd`.
pub(super) fn unknown_user(filter: &Filter) -> Option<String> {
    let users = (!filter.users.is_empty()).then(Users::read)?;
    let is_known = |user: &&String| user.parse::<u32>().is_ok() || users.has_name(user);
    let user = filter.users.iter().find(|user| !is_known(user))?;
    Some(format!("--user: `{user}` is no name in /etc/passwd; for others give the number (id -u {user})"))
}

/// Says that no process was chosen, and what uses NCCL here.
pub(super) fn none_matched() -> String {
    let Ok(found) = nccl_processes() else { return "no process matched".to_owned() };
    let all: Vec<String> = found
        .processes
        .iter()
        .filter(|process| process.pid() != std::process::id())
        .map(|process| format!("{} ({})", process.pid(), process.name()))
        .collect();
    let denied = match found.denied {
        0 => String::new(),
        count => {
            let named = in_brackets(&found.denied_pids, count);
            format!("; cannot inspect {count} more{named}: {}", denied_remedy())
        }
    };
    let more = if all.len() > MAX_NAMED { " …" } else { "" };
    match all.len() {
        0 => format!("no process matched, and none of this host is known to use NCCL{denied}"),
        1 => format!("no process matched; one uses NCCL: {}{denied}", joined(&all, "")),
        count => {
            let names = joined(all.iter().take(MAX_NAMED), ", ");
            format!("no process matched; {count} use NCCL: {names}{more} (`ncclflow ps` has more){denied}")
        }
    }
}

/// Groups processes by reason: those that only their PIDs tell apart are one sentence.
pub(super) fn by_reason(reasons: impl IntoIterator<Item = (u32, String)>) -> Vec<String> {
    let mut by: BTreeMap<String, Vec<u32>> = BTreeMap::new();
    let mut order = Vec::new();
    for (pid, reason) in reasons {
        let reason = reason.replace(&format!("process {pid}"), "process\0");
        if !by.contains_key(&reason) {
            order.push(reason.clone());
        }
        by.entry(reason).or_default().push(pid);
    }
    let sentence = |reason: &String| {
        let pids = by.get(reason)?;
        let more = pids.len().saturating_sub(MAX_NAMED);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        let named = joined(pids.iter().take(MAX_NAMED), ", ") + &more;
        let named = if pids.len() == 1 { format!("process {named}") } else { format!("processes {named}") };
        let is_told = reason.contains('\0');
        if !is_told {
            return Some(format!("{named}: {reason}"));
        }
        let sentence = reason.replace("process\0", &named);
        Some(if pids.len() == 1 { sentence } else { of_several(&sentence) })
    };
    order.iter().filter_map(sentence).collect()
}

/// Mends the number of the verbs of a sentence of one process that has become one of several.
fn of_several(sentence: &str) -> String {
    sentence
        .replace("there is no processes", "there are no processes")
        .replace("it has exited, or never was", "they have exited, or never were")
}

/// Checks that one of the processes that were named is there. Of several, an error names all.
///
/// # Errors
/// None is there.
pub(super) fn one_is_there(pids: &[u32]) -> Result<()> {
    let reason = |pid: &u32| Some((*pid, Process::open(*pid).err()?.to_string()));
    match pids.iter().map(reason).collect::<Option<Vec<_>>>() {
        Some(reasons) if !pids.is_empty() => bail!("{}", joined(by_reason(reasons), "; ")),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_with_one_reason_are_one_sentence() {
        let told = |pid: u32| (pid, format!("the memory of process {pid} cannot be read: run as root"));
        let reasons =
            [told(7), (9, "it has no torch".to_owned()), told(71), (8, "it has no torch".to_owned())];
        let expected =
            ["the memory of processes 7, 71 cannot be read: run as root", "processes 9, 8: it has no torch"];
        assert_eq!(by_reason(reasons), expected);
        assert_eq!(by_reason([told(7)]), ["the memory of process 7 cannot be read: run as root"]);
        let many = by_reason((1..=12).map(|pid| (pid, "x".to_owned())));
        assert_eq!(many, ["processes 1, 2, 3, 4, 5, 6, 7, 8 and 4 more: x"]);
    }

    #[test]
    fn all_that_are_missing_are_named() {
        // Above the kernel's largest PID.
        let [one, other] = [4_194_305, 4_194_306];
        let said = |pids: &[u32]| one_is_there(pids).map_err(|error| error.to_string());
        assert_eq!(said(&[]), Ok(()));
        assert_eq!(said(&[one, std::process::id()]), Ok(()));
        assert!(said(&[one]).unwrap_err().starts_with("there is no process 4194305: it has exited"));
        let both = said(&[one, other]).unwrap_err();
        assert!(both.starts_with("there are no processes 4194305, 4194306: they have exited"), "{both}");
    }

    #[test]
    fn a_user_is_a_number_or_known_here() {
        let unknown = |users: &[&str]| {
            let users = users.iter().map(|user| (*user).to_owned()).collect();
            unknown_user(&Filter { users, ..Filter::default() })
        };
        assert_eq!(unknown(&[]), None);
        assert_eq!(unknown(&["root", "77777"]), None);
        assert!(unknown(&["root", "no:such"]).unwrap().contains("`no:such`"));
    }
}
