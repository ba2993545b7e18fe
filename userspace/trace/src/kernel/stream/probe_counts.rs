//! Counts per probe and CPU.

use ncclflow_common::MAX_PROBES;

/// The number of CPUs that Linux can have at most (`CONFIG_NR_CPUS`). What a record says of further ones, or
/// of more probes than there are, is counted together: it can be of anybody's making.
const MAX_CPUS: usize = 8192;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProbeCounts {
    by_probe: Vec<Vec<u64>>,
}

impl ProbeCounts {
    pub fn count(&mut self, probe: u16, cpu: u32) {
        let probe = usize::from(probe).min(MAX_PROBES as usize);
        let cpu = usize::try_from(cpu).unwrap_or(MAX_CPUS).min(MAX_CPUS);
        self.change(probe, cpu, |count| count + 1);
    }

    fn change(&mut self, probe: usize, cpu: usize, with: impl FnOnce(u64) -> u64) {
        if self.by_probe.len() <= probe {
            self.by_probe.resize_with(probe + 1, Vec::new);
        }
        let Some(by_cpu) = self.by_probe.get_mut(probe) else { return };
        if by_cpu.len() <= cpu {
            by_cpu.resize(cpu + 1, 0);
        }
        if let Some(count) = by_cpu.get_mut(cpu) {
            *count = with(*count);
        }
    }

    pub fn add(&mut self, other: &Self) {
        self.combine(other, u64::saturating_add);
    }

    /// Returns what was counted since `earlier`, an earlier state of these counts.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let mut difference = self.clone();
        difference.combine(earlier, u64::saturating_sub);
        difference
    }

    fn combine(&mut self, other: &Self, with: impl Fn(u64, u64) -> u64) {
        for (probe, by_cpu) in other.by_probe.iter().enumerate() {
            for (cpu, theirs) in by_cpu.iter().enumerate() {
                self.change(probe, cpu, |ours| with(ours, *theirs));
            }
        }
    }

    pub fn of(&self, probe: u32, cpu: usize) -> u64 {
        self.cpus(probe).get(cpu).copied().unwrap_or(0)
    }

    /// Returns the count of a probe over all CPUs.
    pub fn of_probe(&self, probe: u32) -> u64 {
        self.cpus(probe).iter().sum()
    }

    /// Returns the count over all probes and CPUs.
    pub fn total(&self) -> u64 {
        self.by_probe.iter().flatten().sum()
    }

    fn cpus(&self, probe: u32) -> &[u64] {
        let by_cpu = usize::try_from(probe).ok().and_then(|probe| self.by_probe.get(probe));
        by_cpu.map_or(&[], Vec::as_slice)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probes_and_cpus_that_there_are_not_are_counted_together() {
        let mut counts = ProbeCounts::default();
        for probe in (0..u16::MAX).step_by(7) {
            counts.count(probe, u32::MAX);
            counts.count(probe, 3);
        }
        assert!(counts.by_probe.len() <= MAX_PROBES as usize + 1);
        assert!(counts.by_probe.iter().all(|cpus| cpus.len() <= MAX_CPUS + 1));
        assert_eq!(counts.total(), 2 * 9363);
        assert_eq!((counts.of(7, 3), counts.of(8, 3)), (1, 0));
    }
}
