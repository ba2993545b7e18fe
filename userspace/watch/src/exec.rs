//! `--exec`: a program of the administrator's that is told of each alert.
//!
//! It is a path, and is started directly: no shell reads it, and it has no arguments. The event is on its
//! standard input, in a file in memory, so that nobody waits for who reads it. Its environment is that of
//! ncclflow, which no tenant writes. Nobody waits for the program either: it is killed when its time is over,
//! and those that come too fast are left out and counted.

use std::{
    collections::VecDeque,
    fs::{self, File},
    io::{self, Read as _, Seek as _, Write as _},
    os::{
        fd::AsFd as _,
        unix::{fs::PermissionsExt as _, process::CommandExt as _, process::ExitStatusExt as _},
    },
    path::{Path, PathBuf},
    process::{Child, ChildStderr, Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};
use rustix::{
    fs::{MemfdFlags, OFlags, fcntl_getfl, fcntl_setfl, memfd_create},
    process::{Pid, Signal, kill_process_group},
};

/// Most programs that run at a time, and most events that wait for one.
const MAX_RUNNING: usize = 4;
const MAX_WAITING: usize = 16;
/// Bytes of standard error that are kept, and most that are read of it at a time.
const KEPT: usize = 1024;
const READ_AT_ONCE: usize = 64 << 10;
/// Time within which a killed program is gone.
const DIES_WITHIN: Duration = Duration::from_secs(10);
/// Variables that are for ncclflow alone: whoever has them speaks for the service.
pub const SERVICE_VARIABLES: [&str; 3] = ["NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"];

#[derive(Debug)]
pub(crate) struct Exec {
    program: PathBuf,
    limit: Duration,
    running: Vec<Running>,
    /// Events that wait, each with whose job it is of.
    waiting: VecDeque<(String, Vec<u8>)>,
    pub(crate) left_out: u64,
    pub(crate) failed: u64,
}

#[derive(Debug)]
struct Running {
    child: Child,
    begun: Instant,
    errors: Option<ChildStderr>,
    said: Vec<u8>,
    /// When it was killed. It is waited for, or it stays a zombie.
    killed: Option<Instant>,
}

impl Exec {
    /// Checks the program. `limit`: longest time that it may run.
    ///
    /// # Errors
    /// The path is not absolute, or not that of a program, or others than root and we may write to it or to a
    /// folder above it.
    pub(crate) fn new(program: &Path, limit: Duration) -> Result<Self> {
        let shown = program.display();
        if !program.is_absolute() {
            bail!("--exec takes the absolute path of a program, without arguments: `{shown}` is none");
        }
        let metadata = fs::metadata(program).with_context(|| format!("--exec `{shown}`"))?;
        if !metadata.is_file() || metadata.permissions().mode() & 0o111 == 0 {
            bail!("--exec `{shown}`: it is no program, or may not be executed (chmod +x)");
        }
        let program = inspect::trusted(program).with_context(|| format!("--exec `{shown}`"))?;
        let (running, waiting) = (Vec::new(), VecDeque::new());
        Ok(Self { program, limit, running, waiting, left_out: 0, failed: 0 })
    }

    /// Starts the program with an event, or has the event wait. Where there is no room, whoever has most
    /// events waiting loses its latest: nobody's alerts keep others' from the administrator.
    pub(crate) fn tell(&mut self, event: Vec<u8>, whose: &str) {
        if self.waiting.len() >= MAX_WAITING {
            self.left_out += 1;
            let count = |whose: &str| self.waiting.iter().filter(|(of, _)| of == whose).count();
            let most = self.waiting.iter().map(|(of, _)| (count(of), of)).max();
            let most = most.filter(|(most, _)| *most > count(whose) + 1).map(|(_, of)| of.clone());
            let Some(at) = most.and_then(|most| self.waiting.iter().rposition(|(of, _)| *of == most)) else {
                return;
            };
            self.waiting.remove(at);
        }
        self.waiting.push_back((whose.to_owned(), event));
    }

    /// Looks at the programs that run, without waiting, and starts those that wait. Returns sentences on what
    /// failed.
    pub(crate) fn tick(&mut self) -> Vec<String> {
        let (mut said, shown) = (Vec::new(), self.program.display().to_string());
        let limit = self.limit;
        self.running.retain_mut(|running| match running.look(limit) {
            Ok(None) => true,
            Ok(Some(())) => false,
            Err(why) => {
                let errors = String::from_utf8_lossy(&running.said);
                let errors =
                    if errors.is_empty() { String::new() } else { format!(": {}", errors.trim_end()) };
                said.push(format!("--exec {shown} {why}{errors}"));
                false
            }
        });
        while self.running.len() < MAX_RUNNING
            && let Some((_, event)) = self.waiting.pop_front()
        {
            match Running::start(&self.program, &event) {
                Ok(running) => self.running.push(running),
                Err(error) => said.push(format!("--exec {shown} cannot be started: {error}")),
            }
        }
        self.failed += said.len() as u64;
        said
    }

    /// Ends all programs that run: ncclflow ends.
    pub(crate) fn end(&mut self, patience: Duration) {
        let deadline = Instant::now() + patience;
        while Instant::now() < deadline && !(self.running.is_empty() && self.waiting.is_empty()) {
            self.tick();
            std::thread::sleep(Duration::from_millis(20));
        }
        self.running.iter_mut().for_each(Running::kill);
    }
}

impl Running {
    fn start(program: &Path, event: &[u8]) -> io::Result<Self> {
        let mut input: File = memfd_create("ncclflow-event", MemfdFlags::CLOEXEC)?.into();
        input.write_all(event)?;
        input.rewind()?;
        let mut command = Command::new(program);
        command.stdin(input).stdout(Stdio::null()).stderr(Stdio::piped()).process_group(0).current_dir("/");
        for name in SERVICE_VARIABLES {
            command.env_remove(name);
        }
        let mut child = command.spawn()?;
        let errors = child.stderr.take();
        if let Some(errors) = &errors {
            let flags = fcntl_getfl(errors.as_fd())?;
            fcntl_setfl(errors.as_fd(), flags | OFlags::NONBLOCK)?;
        }
        Ok(Self { child, begun: Instant::now(), errors, said: Vec::new(), killed: None })
    }

    /// Tells whether it has ended well; an error says how it ended else. `None`: it runs.
    fn look(&mut self, limit: Duration) -> Result<Option<()>, String> {
        self.listen();
        let ended = self.child.try_wait();
        if let Some(killed) = self.killed {
            // One that sleeps in the kernel is left to init.
            let is_gone = !matches!(ended, Ok(None)) || killed.elapsed() > DIES_WITHIN;
            let why = format!("ran for longer than {} s and was killed", limit.as_secs_f64());
            return if is_gone { Err(why) } else { Ok(None) };
        }
        match ended {
            Ok(Some(status)) if status.success() => Ok(Some(())),
            Ok(Some(status)) => Err(match (status.code(), status.signal()) {
                (Some(code), _) => format!("ended with exit code {code}"),
                (None, signal) => format!("was ended by signal {}", signal.unwrap_or_default()),
            }),
            Ok(None) if self.begun.elapsed() >= limit => {
                self.kill();
                Ok(None)
            }
            Ok(None) => Ok(None),
            Err(error) => Err(format!("cannot be waited for: {error}")),
        }
    }

    /// Reads what it has said. A program that says more than is read waits for us, until its time is over.
    fn listen(&mut self) {
        let Some(errors) = &mut self.errors else { return };
        let (mut buffer, mut left) = ([0; 4096], READ_AT_ONCE);
        while left > 0 {
            match errors.read(&mut buffer) {
                Ok(0) => {
                    self.errors = None;
                    return;
                }
                Ok(read) => {
                    left = left.saturating_sub(read);
                    let room = KEPT.saturating_sub(self.said.len());
                    self.said.extend(buffer.iter().take(read.min(room)));
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return,
            }
        }
    }

    /// Kills it, and what it has started in its process group.
    fn kill(&mut self) {
        if let Some(group) = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw) {
            let _ = kill_process_group(group, Signal::KILL);
        }
        self.killed = Some(Instant::now());
    }
}

#[cfg(test)]
mod tests {
    use test_support::wait_until;

    use super::*;

    const LONG: Duration = Duration::from_mins(1);

    fn program(folder: &Path, script: &str) -> PathBuf {
        let path = folder.join("alert");
        fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        path
    }

    /// Runs it for one event until it has ended; gives what was said of it.
    fn run(script: &str, limit: Duration, event: &str) -> (tempfile::TempDir, Vec<String>) {
        let folder = tempfile::tempdir().unwrap();
        let script = script.replace("{}", &folder.path().display().to_string());
        let mut exec = Exec::new(&program(folder.path(), &script), limit).unwrap();
        exec.tell(event.as_bytes().to_vec(), "ann");
        let mut said = Vec::new();
        wait_until("the program has ended", LONG, || {
            said.extend(exec.tick());
            exec.running.is_empty() && exec.waiting.is_empty()
        });
        (folder, said)
    }

    #[test]
    fn it_has_the_event_on_its_input_and_no_arguments_and_a_failure_is_said() {
        let event = "{\"sentence\":\"$(touch {}/x) ; `id` \\n\"}";
        let (folder, said) = run("cat > {}/got; echo $# > {}/count", LONG, event);
        assert!(said.is_empty(), "{said:?}");
        assert_eq!(fs::read_to_string(folder.path().join("got")).unwrap(), event);
        assert_eq!(fs::read_to_string(folder.path().join("count")).unwrap(), "0\n");
        let (_folder, said) = run("echo no route >&2; exit 7", LONG, "{}");
        assert!(said[0].contains("ended with exit code 7: no route"), "{said:?}");
    }

    #[test]
    fn one_that_hangs_or_floods_is_killed_with_its_children_and_nobody_waits() {
        let (folder, said) = run("sleep 600 & echo $! > {}/pid; wait", Duration::from_millis(500), "{}");
        assert!(said[0].contains("ran for longer than 0.5 s and was killed"), "{said:?}");
        let child = fs::read_to_string(folder.path().join("pid")).unwrap();
        wait_until("its child is gone", LONG, || !Path::new("/proc").join(child.trim()).join("exe").exists());
        let begun = Instant::now();
        let (_folder, said) = run("while :; do echo flood flood >&2; done", Duration::from_millis(500), "{}");
        assert!(said[0].len() < 2 * KEPT && begun.elapsed() < LONG / 2, "{}", said[0].len());
    }

    #[test]
    fn events_that_come_too_fast_are_counted_and_a_program_of_others_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = program(folder.path(), "exit 0");
        let mut exec = Exec::new(&path, LONG).unwrap();
        (0..100).for_each(|_| exec.tell(Vec::new(), "ann"));
        assert_eq!((exec.waiting.len(), exec.left_out), (MAX_WAITING, 84));
        // Another's comes through, up to half; each takes the place of one of the flood.
        (0..100).for_each(|_| exec.tell(Vec::new(), "bob"));
        let of_bob = exec.waiting.iter().filter(|(whose, _)| whose == "bob").count();
        assert_eq!((exec.waiting.len(), of_bob, exec.left_out), (MAX_WAITING, MAX_WAITING / 2, 184));
        exec.tick();
        assert_eq!(exec.running.len(), MAX_RUNNING);
        exec.end(LONG);
        let refused = |path: &Path| format!("{:#}", Exec::new(path, LONG).unwrap_err());
        fs::set_permissions(&path, fs::Permissions::from_mode(0o775)).unwrap();
        assert!(refused(&path).contains("written to by others"));
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).unwrap();
        assert!(refused(&path).contains("written to by others"), "they could put another in its place");
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o700)).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        assert!(refused(&path).contains("may not be executed"));
        assert!(refused(Path::new("curl -d @- http://x")).contains("absolute path"));
        assert!(refused(&folder.path().join("none")).contains("--exec"));
    }
}
