//! Checks the completions with shells and the man pages with man(1).

use std::{fs, path::Path, process::Command};

use anyhow::{Context as _, Result, bail};

use crate::prerequisites;

/// Checks by each shell: it checks the file, takes it, and is asked for what it took. `$1` is the folder of
/// completions.
const CHECKS: [(&str, &[&str], &str); 3] = [
    (
        "bash",
        &["-c"],
        r#"bash -n "$1/ncclflow.bash" && . "$1/ncclflow.bash" && complete -p ncclflow >/dev/null"#,
    ),
    (
        "zsh",
        &["-f", "-c"],
        r#"zsh -n "$1/_ncclflow" && fpath=("$1" $fpath) && autoload -U compinit && compinit -u -D &&
           [[ $_comps[ncclflow] = _ncclflow ]] && autoload +X _ncclflow"#,
    ),
    (
        "fish",
        &["--no-config", "-c"],
        r#"fish --no-execute "$argv[2]/ncclflow.fish" && source "$argv[2]/ncclflow.fish" &&
           complete -C "ncclflow reco" | string match -q "record*""#,
    ),
];

/// Fails if a shell or man(1) finds something wrong in the files of this folder.
pub(super) fn check(folder: &Path) -> Result<()> {
    prerequisites::debian_packages(&[
        (&["zsh", "--version"], "zsh"),
        (&["fish", "--version"], "fish"),
        (&["man", "--version"], "man-db"),
    ])?;
    for (shell, options, script) in CHECKS {
        let mut command = Command::new(shell);
        command.args(options).arg(script).arg(shell).arg(folder.join("completions"));
        silent(&mut command).with_context(|| format!("the completions of {shell}"))?;
    }
    let mut pages = 0;
    for entry in fs::read_dir(folder.join("man")).context("listing the man pages")? {
        let page = entry?.path();
        let mut man = Command::new("man");
        man.args(["--warnings", "--encoding=UTF-8", "--local-file", "--ditroff", "--troff-device=utf8"]);
        // Without preprocessors, as the pages have no tables.
        man.arg(&page).env("LC_ALL", "C.UTF-8").env("MANWIDTH", "80").env("MANROFFSEQ", "");
        silent(&mut man).with_context(|| format!("the man page `{}`", page.display()))?;
        pages += 1;
    }
    if pages == 0 {
        bail!("there is no man page in `{}`", folder.display());
    }
    eprintln!("bash, zsh and fish take the completions, man the {pages} pages");
    Ok(())
}

/// Fails if the command fails or complains.
fn silent(command: &mut Command) -> Result<()> {
    let output =
        command.output().with_context(|| format!("starting `{}`", command.get_program().display()))?;
    let said = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() || !said.trim().is_empty() {
        bail!("{}: {}", output.status, said.trim_end());
    }
    Ok(())
}
