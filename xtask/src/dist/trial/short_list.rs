//! The short list: the things that every shipped program must do, wherever it is installed.

use std::{
    ffi::{OsStr, OsString},
    fs,
    path::Path,
    process::Command,
};

use anyhow::{Context as _, Result, bail};

use super::{jobs::Jobs, unit::Unit};

/// A program at the place where it is installed.
#[derive(Debug)]
pub(super) struct Place {
    name: String,
    /// Words before the program, as of chroot(1).
    before: Vec<OsString>,
    program: OsString,
    /// Variables with which the NVML double is found and asked.
    variables: Vec<(OsString, OsString)>,
    /// False for a static program, which knows of no GPUs.
    has_gpus: bool,
    /// Number of times that a command is run until its whole output arrives.
    attempts: u32,
}

impl Place {
    pub(super) fn new(name: &str, before: Vec<OsString>, variables: Vec<(OsString, OsString)>) -> Self {
        let program = "/usr/bin/ncclflow".into();
        Self { name: name.to_owned(), before, program, variables, has_gpus: true, attempts: 1 }
    }

    /// Says that what is before the program may pass on only the beginning of what it prints.
    pub(super) fn with_attempts(self, attempts: u32) -> Self {
        Self { attempts, ..self }
    }

    /// Names a program in this file system. `double`: the NVML that it is to load, if it can.
    pub(super) fn here(name: &str, program: &Path, double: Option<&Path>, jobs: &Jobs) -> Self {
        let of_double = |double: &Path| {
            vec![
                ("NCCLFLOW_NVML".into(), double.into()),
                ("NVML_DOUBLE_STATES".into(), jobs.gpu_states.clone().into()),
            ]
        };
        Self {
            name: name.to_owned(),
            before: Vec::new(),
            program: program.into(),
            variables: double.map(of_double).unwrap_or_default(),
            has_gpus: double.is_some(),
            attempts: 1,
        }
    }

    /// Makes a command of the program with these capabilities, as setpriv(1) names them; with all if `None`.
    fn command(&self, capabilities: Option<&[String]>) -> Command {
        let mut words = self.before.clone();
        if let Some(capabilities) = capabilities {
            words.extend(bounded(capabilities));
        }
        words.push(self.program.clone());
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).envs(self.variables.iter().cloned());
        command
    }

    /// Runs the program, which must end with this code and say these words. Returns what it said.
    fn run(
        &self,
        capabilities: Option<&[String]>,
        arguments: &[&OsStr],
        code: i32,
        words: &[&str],
    ) -> Result<String> {
        let command = arguments.join(OsStr::new(" "));
        let command = command.display();
        let name = &self.name;
        let mut attempt = 1;
        loop {
            let output = self.command(capabilities).args(arguments).output();
            let output = output.with_context(|| format!("starting the program of {name}"))?;
            let [stdout, stderr] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
            let said = format!("{stdout}{stderr}");
            if output.status.code() != Some(code) {
                bail!("{name}: `ncclflow {command}` ended with {}: {said}", output.status);
            }
            let Some(missing) = words.iter().find(|word| !said.contains(**word)) else { return Ok(said) };
            if attempt == self.attempts {
                bail!("{name}: `ncclflow {command}` does not say `{missing}`: {said}");
            }
            eprintln!("{name}: `ncclflow {command}` does not say `{missing}`; once more");
            attempt += 1;
        }
    }

    /// Runs the part of the list that holds for a program wherever it is installed: its version, what this
    /// host can do, why a job hangs.
    pub(super) fn brief(&self, jobs: &Jobs) -> Result<()> {
        eprintln!("{}: --version, doctor, dump", self.name);
        let version = format!("ncclflow {}", super::super::VERSION);
        self.run(None, &["--version".as_ref()], 0, &[&version])?;
        self.doctor(None)?;
        self.dump(jobs, None)
    }

    /// Runs the whole list, with all capabilities and with the unit's.
    pub(super) fn whole(&self, jobs: &Jobs, unit: &Unit, scratch: &Path) -> Result<()> {
        self.brief(jobs)?;
        for capabilities in [None, Some(&*unit.capabilities)] {
            let whose = if capabilities.is_some() { "the unit's capabilities" } else { "all capabilities" };
            eprintln!("{}: ps, dump, record, stacks, doctor with {whose}", self.name);
            self.doctor(capabilities)?;
            self.dump(jobs, capabilities)?;
            let pids = jobs.running.pids.iter().chain(&jobs.hung.pids).map(u32::to_string);
            let pids: Vec<String> = pids.collect();
            let all: Vec<&str> = pids.iter().map(String::as_str).collect();
            self.run(capabilities, &["ps".as_ref()], 0, &all)?;
            for level in ["api", "flow", "steps"] {
                let folder = scratch.join(format!("recorded-{level}"));
                self.record(capabilities, level, &folder)?;
                fs::remove_dir_all(&folder).with_context(|| format!("removing `{}`", folder.display()))?;
            }
            let pid_list = jobs.running.pid_list();
            let arguments = ["stacks", "--native", "-d", "3", "-p", &*pid_list].map(OsStr::new);
            self.run(capabilities, &arguments, 0, &["ncclAllReduce", "Appeared"])?;
        }
        Ok(())
    }

    fn doctor(&self, capabilities: Option<&[String]>) -> Result<()> {
        self.run(capabilities, &["doctor".as_ref()], 0, &["this host can trace"])?;
        Ok(())
    }

    /// Dumps the hung job: the program must name the rank that has not joined, and its GPU if it can know it.
    fn dump(&self, jobs: &Jobs, capabilities: Option<&[String]>) -> Result<()> {
        let mut arguments = vec![OsStr::new("dump"), OsStr::new("-p")];
        let pids = jobs.hung.pid_list();
        arguments.push(pids.as_ref());
        let gpus: &[&str] = if self.has_gpus { &["99 % busy", "of 700 W"] } else { &["GPUs are unknown"] };
        self.run(capabilities, &arguments, 3, &[&["rank 1 has not joined"], gpus].concat())?;
        Ok(())
    }

    fn record(&self, capabilities: Option<&[String]>, level: &str, folder: &Path) -> Result<()> {
        let mut arguments =
            ["record", "--all", "-d", "3", "--json", "--level", level, "-o"].map(OsStr::new).to_vec();
        arguments.push(folder.as_os_str());
        let said = self.run(capabilities, &arguments, 0, &["\"state\": \"complete\""])?;
        if super::systemd::recorded_lines(folder)? == 0 {
            bail!("{}: `record --all --level {level}` recorded nothing: {said}", self.name);
        }
        Ok(())
    }
}

/// Returns the words before a command that may have these capabilities at most.
pub(super) fn bounded(capabilities: &[String]) -> [OsString; 4] {
    // Debian 11's setpriv does not know the names of the latest.
    let name = |name: &String| match &**name {
        "perfmon" => "cap_38".to_owned(),
        "bpf" => "cap_39".to_owned(),
        "checkpoint_restore" => "cap_40".to_owned(),
        other => other.to_owned(),
    };
    let bounds = capabilities.iter().fold("-all".to_owned(), |bounds, of| format!("{bounds},+{}", name(of)));
    [
        "setpriv".to_owned(),
        format!("--bounding-set={bounds}"),
        "--inh-caps=-all".to_owned(),
        "--no-new-privs".to_owned(),
    ]
    .map(OsString::from)
}
