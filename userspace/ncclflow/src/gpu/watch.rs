//! Thread that asks the driver, and may be lost in it.

use std::{
    env,
    ffi::{OsStr, OsString},
    sync::mpsc::{self, Receiver, Sender},
    thread,
    time::{Duration, Instant},
};

use super::{LIBRARY_VARIABLE, reading::GpuReading, source::Source};

/// NVML's library, as the driver installs it.
const LIBRARY: &str = "libnvidia-ml.so.1";

type Answer = Result<Vec<GpuReading>, String>;

/// Asks the driver without waiting for it.
#[derive(Debug)]
pub struct GpuWatch {
    /// Questions to the thread; `None` if it could not be started.
    asked: Option<Sender<()>>,
    answers: Receiver<Answer>,
    outstanding: usize,
}

/// Answers of the driver.
#[derive(Clone, Debug, Default)]
pub struct GpuSurvey {
    /// Readings in the order of their times; each has all GPUs.
    pub readings: Vec<Vec<GpuReading>>,
    /// Reason why there are none, or not as many as were asked for.
    pub missing: Option<String>,
}

impl GpuWatch {
    /// Starts the thread, which loads the library first. On a host without a GPU the first answer says that
    /// there is no library.
    pub fn start() -> Self {
        Self::with_library(library())
    }

    fn with_library(library: OsString) -> Self {
        let (ask, asked) = mpsc::channel();
        let (answer, answers) = mpsc::channel();
        let thread = thread::Builder::new().name("gpu".to_owned());
        let started = thread.spawn(move || serve(&library, &asked, &answer));
        Self { asked: started.is_ok().then_some(ask), answers, outstanding: 0 }
    }

    /// Asks for a reading of all GPUs. It is made as soon as the driver has answered what was asked before.
    pub fn ask(&mut self) {
        if self.asked.as_ref().is_some_and(|asked| asked.send(()).is_ok()) {
            self.outstanding += 1;
        }
    }

    /// Returns all answers that come within `patience`.
    pub fn finish(mut self, patience: Duration) -> GpuSurvey {
        // The thread ends when it has answered.
        let is_running = self.asked.take().is_some();
        let deadline = Instant::now() + patience;
        let mut survey = GpuSurvey::default();
        for _ in 0..self.outstanding {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.answers.recv_timeout(left) {
                Ok(Ok(gpus)) => survey.readings.push(gpus),
                Ok(Err(why)) => {
                    survey.missing = Some(why);
                    break;
                }
                Err(_) => {
                    let why = "the GPUs' driver did not answer in time";
                    survey.missing = Some(why.to_owned());
                    break;
                }
            }
        }
        if !is_running {
            survey.missing = Some("no thread could be started for the GPUs' driver".to_owned());
        }
        survey
    }
}

/// Returns the library's name or path.
pub(super) fn library() -> OsString {
    env::var_os(LIBRARY_VARIABLE).unwrap_or_else(|| LIBRARY.into())
}

fn serve(library: &OsStr, asked: &Receiver<()>, answer: &Sender<Answer>) {
    let mut source = Source::open(library);
    while asked.recv().is_ok() {
        let reading = match &mut source {
            Ok(source) => Ok(source.read()),
            Err(why) => Err(why.clone()),
        };
        // Nobody listens any more.
        if answer.send(reading).is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_that_is_not_there_is_said_and_nothing_waits() {
        let mut watch = GpuWatch::with_library("/nowhere/libnvidia-ml.so.1".into());
        watch.ask();
        watch.ask();
        let survey = watch.finish(Duration::from_secs(20));
        assert!(survey.readings.is_empty());
        let missing = survey.missing.unwrap();
        assert!(missing.contains("NVML cannot be used") && missing.contains("/nowhere/"), "{missing}");
    }

    /// A driver that hangs: its thread never answers.
    #[test]
    fn an_answer_that_does_not_come_is_given_up() {
        let (ask, _asked) = mpsc::channel();
        let (_answer, answers) = mpsc::channel();
        let mut watch = GpuWatch { asked: Some(ask), answers, outstanding: 0 };
        watch.ask();
        let began = Instant::now();
        let survey = watch.finish(Duration::from_millis(50));
        assert!(began.elapsed() < Duration::from_secs(30));
        assert!(survey.missing.unwrap().contains("did not answer"));
    }
}
