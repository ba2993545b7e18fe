//! Runs the screen: draws on the terminal, takes keys, and restores the terminal at the end, also after a
//! panic.

use std::{
    io,
    time::{Duration, Instant},
};

use ratatui::{
    DefaultTerminal,
    crossterm::event::{self, Event},
};

use super::{
    draw::draw,
    rates::Snapshot,
    state::{Action, State},
    subject::Subject,
};

/// How long a signal can go unnoticed.
const PATIENCE: Duration = Duration::from_millis(100);

/// Where the screen gets what it shows.
pub trait Feed {
    /// The statistics now.
    fn read(&mut self) -> Snapshot;
    /// What is watched; it can have changed.
    fn subject(&mut self) -> Subject;
    /// A line to show, if there is news.
    fn news(&mut self) -> Option<String>;
    /// The session has ended, or was asked to end.
    fn is_over(&self) -> bool;
}

/// Shows the screen until the user, or the feed, wants it to end. A panic, too, leaves the terminal as it
/// was.
///
/// # Errors
/// If the terminal cannot be set up, drawn on or read from.
pub fn show(feed: &mut dyn Feed, mut state: State, interval: Duration) -> io::Result<()> {
    let terminal = ratatui::try_init().inspect_err(|_| ratatui::restore())?;
    let done = run(terminal, feed, &mut state, interval);
    ratatui::restore();
    done
}

fn run(
    mut terminal: DefaultTerminal,
    feed: &mut dyn Feed,
    state: &mut State,
    interval: Duration,
) -> io::Result<()> {
    let mut subject = feed.subject();
    state.take(feed.read(), &subject);
    let mut next = Instant::now() + interval;
    while !feed.is_over() {
        if let Some(news) = feed.news() {
            subject = feed.subject();
            state.say(news);
        }
        if Instant::now() >= next {
            subject = feed.subject();
            state.take(feed.read(), &subject);
            next = Instant::now() + interval;
        }
        terminal.draw(|frame| draw(frame, state, &subject))?;
        let wait = next.saturating_duration_since(Instant::now()).min(PATIENCE);
        if event::poll(wait)?
            && let Event::Key(key) = event::read()?
        {
            state.message = None;
            if state.key(key, &subject) == Action::Quit {
                break;
            }
        }
    }
    Ok(())
}
