//! Counts per probe and CPU.

/// Larger than any number of CPUs that Linux can have (`CONFIG_NR_CPUS` is 8192 at most).
const MAX_CPUS: usize = 1 << 16;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProbeCounts {
    by_probe: Vec<Vec<u64>>,
}

impl ProbeCounts {
    pub fn count(&mut self, probe: u16, cpu: u32) {
        let (probe, cpu) = (usize::from(probe), usize::try_from(cpu).unwrap_or(MAX_CPUS).min(MAX_CPUS));
        if self.by_probe.len() <= probe {
            self.by_probe.resize_with(probe + 1, Vec::new);
        }
        let Some(by_cpu) = self.by_probe.get_mut(probe) else { return };
        if by_cpu.len() <= cpu {
            by_cpu.resize(cpu + 1, 0);
        }
        if let Some(count) = by_cpu.get_mut(cpu) {
            *count += 1;
        }
    }

    pub fn add(&mut self, other: &Self) {
        self.combine(other, u64::saturating_add);
    }

    /// What has come since `earlier`, an earlier state of this account.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let mut difference = self.clone();
        difference.combine(earlier, u64::saturating_sub);
        difference
    }

    fn combine(&mut self, other: &Self, with: impl Fn(u64, u64) -> u64) {
        if self.by_probe.len() < other.by_probe.len() {
            self.by_probe.resize_with(other.by_probe.len(), Vec::new);
        }
        for (ours, theirs) in self.by_probe.iter_mut().zip(&other.by_probe) {
            if ours.len() < theirs.len() {
                ours.resize(theirs.len(), 0);
            }
            for (ours, theirs) in ours.iter_mut().zip(theirs) {
                *ours = with(*ours, *theirs);
            }
        }
    }

    pub fn of(&self, probe: u32, cpu: usize) -> u64 {
        self.cpus(probe).get(cpu).copied().unwrap_or(0)
    }

    /// Over all CPUs.
    pub fn of_probe(&self, probe: u32) -> u64 {
        self.cpus(probe).iter().sum()
    }

    /// Over all probes and CPUs.
    pub fn total(&self) -> u64 {
        self.by_probe.iter().flatten().sum()
    }

    fn cpus(&self, probe: u32) -> &[u64] {
        let by_cpu = usize::try_from(probe).ok().and_then(|probe| self.by_probe.get(probe));
        by_cpu.map_or(&[], Vec::as_slice)
    }
}
