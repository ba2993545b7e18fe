//! The command line, the variables and the capabilities of the installed unit.

use std::{fs, path::Path};

use anyhow::{Context as _, Result, bail};

/// An installed unit, as read from it and its defaults.
#[derive(Debug)]
pub(super) struct Unit {
    /// Path of the program below the root that the package is installed in.
    pub(super) program: String,
    pub(super) arguments: Vec<String>,
    /// Variables of the file of defaults.
    variables: Vec<(String, String)>,
    /// Capabilities as setpriv(1) names them: `bpf`.
    pub(super) capabilities: Vec<String>,
}

impl Unit {
    pub(super) fn read(root: &Path) -> Result<Self> {
        let read = |name: &str| {
            fs::read_to_string(root.join(name)).with_context(|| format!("reading `{name}` of the package"))
        };
        let (unit, defaults) =
            (read("usr/lib/systemd/system/ncclflow-record.service")?, read("etc/default/ncclflow")?);
        let line = value(&unit, "ExecStart")?.replace("$NCCLFLOW_ARGS", "");
        let mut words = line.split_whitespace().map(str::to_owned);
        let program = words.next().and_then(|word| Some(word.strip_prefix('/')?.to_owned()));
        let capabilities = value(&unit, "CapabilityBoundingSet")?.split_whitespace();
        let variables = defaults.lines().filter(|line| !line.starts_with('#'));
        Ok(Self {
            program: program.context("no program in ExecStart")?,
            arguments: words.collect(),
            variables: variables
                .filter_map(|line| line.split_once('='))
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .collect(),
            capabilities: capabilities
                .map(|name| name.trim_start_matches("CAP_").to_ascii_lowercase())
                .collect(),
        })
    }

    /// Returns the variables with another port, and with `files` in place of the variable for no files.
    pub(super) fn variables(&self, port: u16, files: (&str, &str)) -> Result<Vec<(String, String)>> {
        let mut variables = self.variables.clone();
        for (name, (new_name, value)) in
            [("NCCLFLOW_METRICS", ("NCCLFLOW_METRICS", &*port.to_string())), ("NCCLFLOW_NO_FILES", files)]
        {
            let at = variables.iter().position(|(variable, _)| variable == name);
            let Some(at) = at else { bail!("the unit's defaults have no {name}: {variables:?}") };
            variables[at] = (new_name.to_owned(), value.to_owned());
        }
        Ok(variables)
    }
}

fn value<'t>(text: &'t str, key: &str) -> Result<&'t str> {
    let found = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('='));
    found.with_context(|| format!("there is no `{key}`"))
}
