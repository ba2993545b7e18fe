//! Steps that need root: as they are for root, through sudo for everybody else. All other steps are the user's.

use std::{
    env,
    ffi::{OsStr, OsString},
    process::Command,
};

use anyhow::{Context as _, Result, bail};

use crate::prerequisites::say;

/// A command that runs as root, with this environment but for what sudo removes (`LD_LIBRARY_PATH` and its like).
pub(crate) fn command(program: impl AsRef<OsStr>) -> Command {
    let mut words = words_before().into_iter().chain([program.as_ref().to_owned()]);
    let mut command = Command::new(words.next().unwrap_or_default());
    command.args(words);
    command
}

/// The words before a command by which it runs as root; none for root.
pub(crate) fn words_before() -> Vec<OsString> {
    if is_root() {
        return Vec::new();
    }
    // sudo replaces PATH by its own, `secure_path`, on which the compilers and Pythons of a user are not.
    let mut path = OsString::from("PATH=");
    path.push(env::var_os("PATH").unwrap_or_default());
    let mut words: Vec<OsString> = ["sudo", "--preserve-env", "--", "env"].map(OsString::from).into();
    words.push(path);
    words
}

/// Has sudo ask for the password now, before hours of work. `purpose`: which step needs it.
///
/// # Errors
/// Without root and without sudo, as a sentence.
pub(crate) fn ask(purpose: &str) -> Result<()> {
    if is_root() {
        return Ok(());
    }
    say(&format!("{purpose} needs root: sudo may ask for your password"));
    let refused = || format!("{purpose} needs root: run this as root, or as a user who may use sudo");
    let status = Command::new("sudo").arg("--validate").status().with_context(refused)?;
    if !status.success() {
        bail!(refused());
    }
    Ok(())
}

/// Gives the user a folder that a step made as root.
pub(crate) fn give_to_user(folder: &OsStr) -> Result<()> {
    if is_root() {
        return Ok(());
    }
    let (user, group) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
    let mut chown = command("chown");
    crate::tool::run(
        chown.args(["--recursive", &format!("{user}:{group}")]).arg(folder),
        "the user's own files",
    )
}

/// Whether commands can run as root: as it is, or through sudo, which does not ask now.
pub(crate) fn is_to_be_had() -> bool {
    let sudo = || Command::new("sudo").args(["--non-interactive", "true"]).status();
    is_root() || sudo().is_ok_and(|status| status.success())
}

pub(crate) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}
