//! Reading of the variables that launchers set in the initial environment of a rank's process.
//!
//! `/proc/PID/environ` has secrets, too. Only the variables that are listed in
//! [`JobVariable`](flow::identity::JobVariable) are looked at; nothing else of the file is kept.

use flow::identity::Variables;

use crate::{
    process::Process,
    resolver::{self, ProcFile},
};

/// Reads the variables of a process. Gives `None` if it may not be looked at, or has ended meanwhile.
pub fn read_variables(process: &Process) -> Option<Variables> {
    // The environment is read from the process's memory.
    let bytes = resolver::proc_bytes(process.pid(), ProcFile::Environment).ok()?;
    let variables = Variables::parse(bytes.as_slice()).ok()?;
    // Another process can have its number only once it has ended.
    (!process.has_exited()).then_some(variables)
}

#[cfg(test)]
mod tests {
    use super::*;
    use flow::identity::JobVariable;
    use std::{
        process::{Command, Stdio},
        time::Duration,
    };

    #[test]
    fn a_process_is_read() {
        let mut child = Command::new("sleep")
            .arg("60")
            .env_clear()
            .envs([("PATH", "/bin:/usr/bin"), ("RANK", "5"), ("TOKEN", "secret")])
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        let process = Process::open(child.id()).unwrap();
        // Between fork and exec the child still has our environment.
        let expected = Variables::of(&[(JobVariable::Rank, "5")]);
        test_support::wait_until("the child has its environment", Duration::from_secs(10), || {
            read_variables(&process).as_ref() == Some(&expected)
        });
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(read_variables(&process), None);
    }
}
