//! Thread that asks the driver, and may be lost in it.

use std::{
    env,
    ffi::OsString,
    thread,
    time::{Duration, Instant},
};

use super::{LIBRARY_VARIABLE, reading::GpuReading, source::Source};
use crate::unresponsive::Answerer;

/// NVML's library, as the driver installs it.
const LIBRARY: &str = "libnvidia-ml.so.1";

type Driver = Answerer<(), Result<Vec<GpuReading>, String>>;

/// Asks the driver without waiting for it.
#[derive(Debug)]
pub struct GpuWatch {
    /// `None`: the thread could not be started.
    driver: Option<Driver>,
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
        let driver = Driver::start(thread::Builder::new().name("gpu".to_owned()), move || {
            let mut source = Source::open(&library);
            move |()| source.as_mut().map(Source::read).map_err(|why| why.clone())
        });
        Self { driver: driver.ok(), outstanding: 0 }
    }

    /// Asks for a reading of all GPUs. It is made as soon as the driver has answered what was asked before.
    pub fn ask(&mut self) {
        if self.driver.as_ref().is_some_and(|driver| driver.ask(())) {
            self.outstanding += 1;
        }
    }

    /// Returns all answers that come within `patience`.
    pub fn finish(self, patience: Duration) -> GpuSurvey {
        let deadline = Instant::now() + patience;
        let mut survey = GpuSurvey::default();
        let Some(driver) = self.driver else {
            survey.missing = Some("no thread could be started for the GPUs' driver".to_owned());
            return survey;
        };
        for _ in 0..self.outstanding {
            let left = deadline.saturating_duration_since(Instant::now());
            let late = || Err("the GPUs' driver did not answer in time".to_owned());
            match driver.answer(left).unwrap_or_else(late) {
                Ok(gpus) => survey.readings.push(gpus),
                Err(why) => {
                    survey.missing = Some(why);
                    break;
                }
            }
        }
        survey
    }
}

/// Returns the library's name or path.
pub(super) fn library() -> OsString {
    env::var_os(LIBRARY_VARIABLE).unwrap_or_else(|| LIBRARY.into())
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
        let hang = |()| {
            thread::sleep(Duration::from_secs(60));
            Ok(Vec::new())
        };
        let driver = Driver::start(thread::Builder::new(), move || hang).ok();
        let mut watch = GpuWatch { driver, outstanding: 0 };
        watch.ask();
        let began = Instant::now();
        let survey = watch.finish(Duration::from_millis(50));
        assert!(began.elapsed() < Duration::from_secs(30));
        assert!(survey.missing.unwrap().contains("did not answer"));
    }
}
