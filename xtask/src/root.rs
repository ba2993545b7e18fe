//! Steps that need root. They run as they are for root, and through sudo for everybody else. All other steps
//! are the user's.

use std::{
    env,
    ffi::{OsStr, OsString},
    fs,
    os::unix::{fs::MetadataExt as _, process::CommandExt as _},
    process::Command,
};

use anyhow::{Context as _, Result, bail};

use crate::{
    repository,
    tool::{self, say},
};

/// Makes a command that runs as root, with this environment but for what sudo removes (`LD_LIBRARY_PATH`,
/// `PYTHONPATH`).
pub(crate) fn command(program: impl AsRef<OsStr>) -> Command {
    let mut words = words_before().into_iter().chain([program.as_ref().to_owned()]);
    let mut command = Command::new(words.next().unwrap_or_default());
    command.args(words);
    command
}

/// Returns the words before a command by which it runs as root; none for root.
pub(crate) fn words_before() -> Vec<OsString> {
    if is_root() {
        return Vec::new();
    }
    // sudo replaces PATH by its own, `secure_path`, which lacks the compilers and Pythons of a user.
    let path = env::var_os("PATH").unwrap_or_default();
    let words = ["sudo", "--preserve-env", "--", "env"].map(OsString::from).into_iter();
    words.chain([assignment("PATH", &path)]).collect()
}

/// Makes a word of env(1), for variables that sudo removes: PATH, and those that Python reads.
pub(crate) fn assignment(name: &str, value: &OsStr) -> OsString {
    let mut word = OsString::from(format!("{name}="));
    word.push(value);
    word
}

/// Has sudo ask for the password now, before hours of work. `purpose` names the step that needs it.
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

/// Starts this program again as root, with the same arguments, unless root runs it. It still builds as the
/// user.
pub(crate) fn become_root(purpose: &str) -> Result<()> {
    if is_root() {
        return Ok(());
    }
    ask(purpose)?;
    let own = tool::own_program()?;
    Err(command(own).args(env::args_os().skip(1)).exec()).context("starting sudo")
}

/// Has a command run as the user who became root through sudo, if the repository is that user's: the user
/// could not change later what cargo makes as root.
pub(crate) fn as_user(command: &mut Command) {
    let id = |name: &str| env::var(name).ok()?.parse::<u32>().ok();
    let owner = fs::metadata(repository::root()).map(|folder| folder.uid()).ok();
    if let (true, Some(user), Some(group)) = (is_root(), id("SUDO_UID"), id("SUDO_GID"))
        && owner == Some(user)
    {
        command.uid(user).gid(group);
    }
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

/// Tells whether commands can run as root: as they are, or through sudo, if that does not ask now.
pub(crate) fn is_to_be_had() -> bool {
    let sudo = || Command::new("sudo").args(["--non-interactive", "true"]).status();
    is_root() || sudo().is_ok_and(|status| status.success())
}

pub(crate) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}
