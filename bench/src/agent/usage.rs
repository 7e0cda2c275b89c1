//! Processor time and memory of a process and its descendants, from `/proc`.

use std::fs;

/// Returns the microseconds of processor time of all live threads of a process and its descendants; NaN if
/// unknown.
pub(crate) fn processor_time(process: u32) -> f64 {
    sum(process, time_of)
}

pub(crate) fn own_time(process: u32) -> f64 {
    time_of(process).unwrap_or(f64::NAN)
}

fn time_of(process: u32) -> Option<f64> {
    let tasks = fs::read_dir(format!("/proc/{process}/task")).ok()?;
    tasks.flatten().map(|task| on_processor(&fs::read_to_string(task.path().join("schedstat")).ok()?)).sum()
}

/// Returns the sum in MB of a line of `/proc/PID/status` that has a size, such as `VmRSS`, over the process
/// and its descendants.
pub(crate) fn memory(process: u32, line: &str) -> f64 {
    sum(process, |process| memory_of(process, line))
}

pub(crate) fn own_memory(process: u32, line: &str) -> f64 {
    memory_of(process, line).unwrap_or(f64::NAN)
}

fn memory_of(process: u32, line: &str) -> Option<f64> {
    size(&fs::read_to_string(format!("/proc/{process}/status")).ok()?, line)
}

fn sum(process: u32, figure: impl Fn(u32) -> Option<f64>) -> f64 {
    let mut found = vec![process];
    let mut next = 0;
    while let Some(&parent) = found.get(next) {
        found.extend(children(parent));
        next += 1;
    }
    // A descendant that has exited counts as zero; without the process itself there is no figure.
    let first = figure(process).unwrap_or(f64::NAN);
    first + found[1..].iter().filter_map(|process| figure(*process)).sum::<f64>()
}

fn children(process: u32) -> Vec<u32> {
    let tasks = fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
    let children = tasks.filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
    children
        .flat_map(|line| line.split(' ').filter_map(|id| id.trim().parse().ok()).collect::<Vec<u32>>())
        .collect()
}

/// Parses the processor time in a line of `schedstat`, which is in nanoseconds.
fn on_processor(line: &str) -> Option<f64> {
    line.split(' ').next()?.parse::<f64>().ok().map(|nanoseconds| nanoseconds / 1e3)
}

fn size(status: &str, name: &str) -> Option<f64> {
    let size = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    let kibibytes: f64 = size.trim().strip_suffix(" kB")?.parse().ok()?;
    Some(kibibytes * 1024.0 / 1e6)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read() {
        assert_eq!(on_processor("32280906 307381442 15\n"), Some(32280.906));
        assert_eq!(on_processor(""), None);
        let status = "VmPeak:\t    9000 kB\nVmRSS:\t    1000 kB\nThreads:\t1\n";
        assert_eq!(size(status, "VmRSS"), Some(1.024));
        assert_eq!(size(status, "VmR"), None);
        assert_eq!(size(status, "Threads"), None);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn usage_is_measured_and_missing_processes_have_no_figure() {
        assert!(memory(std::process::id(), "VmRSS") > 0.5);
        assert!(memory(u32::MAX, "VmRSS").is_nan());
        assert!(processor_time(u32::MAX).is_nan());
    }
}
