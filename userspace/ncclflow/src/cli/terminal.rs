//! Output on standard output and standard error. All of it goes through [`PlainWriter`]: tenants chose many
//! of its names and paths.

use std::{
    env, fmt,
    io::{self, IsTerminal as _, Stderr, StdoutLock, Write as _, stderr, stdout},
    panic,
    sync::OnceLock,
    thread,
    time::Duration,
};

use clap::{
    ColorChoice,
    builder::styling::{AnsiColor, Style},
};

use super::nonblocking_writer::ToldLines;
use flow::text::{PlainWriter, REPORT_WIDTH, plain, wrap};

/// Whether standard output gets colours.
static HAS_COLOR: OnceLock<bool> = OnceLock::new();

/// Notes the value of `--color`. `auto`: a terminal gets colours, unless asked otherwise
/// (<https://no-color.org>).
pub(super) fn choose_color(choice: ColorChoice) {
    let is_set = |name: &str| env::var_os(name).is_some_and(|value| !value.is_empty());
    let is_dumb = || env::var_os("TERM").is_none_or(|term| term == "dumb");
    let has_color = choice == ColorChoice::Always
        || (choice == ColorChoice::Auto && stdout().is_terminal() && !is_set("NO_COLOR") && !is_dumb());
    // Set once, at the start.
    let _ = HAS_COLOR.set(has_color);
}

pub(super) fn has_color() -> bool {
    HAS_COLOR.get() == Some(&true)
}

/// Writes the verdict, one sentence on lines of its own, to standard output. The program's other output must
/// have been flushed. `color`: none for what only states facts.
pub(super) fn verdict(color: Option<AnsiColor>, sentence: &str) -> io::Result<()> {
    let bold = Style::new().bold().fg_color(color.map(Into::into));
    let sentence = fitted(sentence, width());
    sentence.lines().try_for_each(|line| writeln!(stdout(), "{}", painted(bold, line)))
}

/// Returns words in a style, if standard output gets colours. For writers that let it through: those of
/// [`out`] do not.
pub(super) fn painted(style: Style, words: &str) -> String {
    let style = if has_color() { style } else { Style::new() };
    format!("{style}{}{style:#}", plain(words))
}

/// Returns standard output, for text and for JSON by [`write_json`](super::write_json).
pub(super) fn out() -> PlainWriter<StdoutLock<'static>> {
    PlainWriter::new(stdout().lock())
}

/// Returns the width of the terminal that standard output is, or `$COLUMNS` if a shell has set it.
pub(super) fn width() -> Option<usize> {
    let output = stdout();
    let size = output.is_terminal().then(|| rustix::termios::tcgetwinsize(&output).ok())?;
    let width = size.map(|size| usize::from(size.ws_col)).filter(|width| *width > 0);
    width.or_else(|| env::var("COLUMNS").ok()?.parse().ok())
}

/// Returns the width of the lines of a report: the terminal's, within reason.
pub(super) fn report_width() -> usize {
    width().unwrap_or(REPORT_WIDTH).clamp(LEAST_WIDTH, REPORT_WIDTH)
}

/// Fewest columns that lines are broken at.
const LEAST_WIDTH: usize = 40;

/// Breaks lines that are wider than the terminal, if there is one of this width; each line ends with a newline.
pub(super) fn fitted(text: &str, width: Option<usize>) -> String {
    wrap(text, width.map_or(usize::MAX, |width| width.max(LEAST_WIDTH)))
}

/// Returns the width of the terminal that standard error is.
pub(super) fn width_of_errors() -> Option<usize> {
    let errors = stderr();
    let size = errors.is_terminal().then(|| rustix::termios::tcgetwinsize(&errors).ok())??;
    Some(usize::from(size.ws_col)).filter(|width| *width > 0)
}

/// Returns standard error.
pub(super) fn err() -> PlainWriter<Stderr> {
    PlainWriter::new(stderr())
}

/// Time that the end waits for readers of the lines that were told.
pub(super) const AT_END: Duration = Duration::from_secs(2);

/// Writer of the lines of a command that goes on for long.
static TOLD: OnceLock<ToldLines> = OnceLock::new();

/// From now on lines are written by a thread of their own: nobody waits for their readers.
pub(super) fn tell_in_background() {
    if TOLD.get().is_none()
        && let Ok(lines) = ToldLines::to(err())
    {
        let _ = TOLD.set(lines);
        // A panicking thread does not wait either: the other threads are to learn of it.
        panic::set_hook(Box::new(|why| {
            let thread = thread::current();
            tell(format_args!("thread '{}' {why}", thread.name().unwrap_or("without a name")));
        }));
    }
}

/// Lets writers of lines wait for readers from now on, as the work is done, and waits itself.
pub(super) fn tell_all() {
    if let Some(lines) = TOLD.get() {
        lines.wait_for_readers(AT_END);
        lines.flush(AT_END);
    }
}

/// Waits until the lines are written, for at most `patience`.
pub(super) fn flush_told(patience: Duration) {
    if let Some(lines) = TOLD.get() {
        lines.flush(patience);
    }
}

/// Writes a line to standard error, for people: several, where it is wider than the terminal. If nobody reads it,
/// that is no reason to stop.
pub(super) fn tell(line: fmt::Arguments<'_>) {
    let line = fitted(&line.to_string(), width_of_errors());
    match TOLD.get() {
        Some(lines) => lines.tell(line),
        // In one piece, so that lines of several threads do not mix.
        None => _ = err().write_all(line.as_bytes()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_broken_for_a_terminal_only() {
        let line = "ncclflow: cannot inspect 19 of 19 processes: NCCL in them is not seen; run as root";
        assert_eq!(fitted(line, None), format!("{line}\n"));
        let broken = fitted(&format!("{line}\nshort"), Some(60));
        let lines: Vec<&str> = broken.lines().collect();
        assert_eq!(lines.len(), 3, "{broken}");
        assert!(
            lines.iter().all(|line| line.chars().count() <= 60) && lines[1].starts_with("  "),
            "{broken}"
        );
        assert_eq!(fitted(line, Some(3)), fitted(line, Some(LEAST_WIDTH)));
    }
}
