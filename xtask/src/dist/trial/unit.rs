//! The command line and the capabilities of the installed unit.

use std::{fs, path::Path};

use anyhow::{Context as _, Result, bail};

/// Read from the unit and its defaults.
#[derive(Debug)]
pub(super) struct Unit {
    /// Below the root that the package is installed in.
    pub(super) program: String,
    pub(super) arguments: Vec<String>,
    /// As setpriv(1) names them: `bpf`.
    pub(super) capabilities: Vec<String>,
}

impl Unit {
    pub(super) fn read(root: &Path) -> Result<Self> {
        let read = |name: &str| {
            fs::read_to_string(root.join(name)).with_context(|| format!("reading `{name}` of the package"))
        };
        let (unit, defaults) =
            (read("usr/lib/systemd/system/ncclflow-record.service")?, read("etc/default/ncclflow")?);
        let arguments = value(&defaults, "NCCLFLOW_ARGS")?;
        let line = value(&unit, "ExecStart")?.replace("$NCCLFLOW_ARGS", arguments.trim_matches('"'));
        let mut words = line.split_whitespace().map(str::to_owned);
        let program = words.next().and_then(|word| Some(word.strip_prefix('/')?.to_owned()));
        let capabilities = value(&unit, "CapabilityBoundingSet")?.split_whitespace();
        Ok(Self {
            program: program.context("no program in ExecStart")?,
            arguments: words.collect(),
            capabilities: capabilities
                .map(|name| name.trim_start_matches("CAP_").to_ascii_lowercase())
                .collect(),
        })
    }

    /// The arguments with another port, and files or none.
    pub(super) fn arguments(&self, port: u16, files: &[&str]) -> Result<Vec<String>> {
        let mut arguments = self.arguments.clone();
        // Each option can be given once.
        for (option, with) in
            [("--metrics", vec!["--metrics".to_owned(), port.to_string()]), ("--no-files", owned(files))]
        {
            let at = arguments.iter().position(|argument| argument == option);
            let Some(at) = at else { bail!("the unit's command line has no {option}: {arguments:?}") };
            let taken = if option == "--metrics" { 2 } else { 1 };
            arguments.splice(at..(at + taken).min(arguments.len()), with);
        }
        Ok(arguments)
    }
}

fn owned(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

fn value<'t>(text: &'t str, key: &str) -> Result<&'t str> {
    let found = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('='));
    found.with_context(|| format!("there is no `{key}`"))
}
