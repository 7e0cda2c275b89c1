//! Waits for events outside of this process.

use std::time::{Duration, Instant};

/// Waits until `condition` holds. Returns `false` if `deadline` passes first.
pub async fn wait_until(deadline: Duration, mut condition: impl FnMut() -> bool) -> bool {
    let started = Instant::now();
    while !condition() {
        if started.elapsed() > deadline {
            return false;
        }
        // sleep: another process sends no notification, so this polls
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    true
}

/// Returns the ids of all other processes with `marker` in their command line, except zombies.
#[must_use]
pub fn alive_with_marker(marker: &str) -> Vec<u32> {
    let Ok(processes) = std::fs::read_dir("/proc") else { return Vec::new() };
    let ids = processes.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    ids.filter(|id| *id != std::process::id())
        .filter(|id| {
            // The command line of a process that has just exited cannot be read.
            let command = std::fs::read(format!("/proc/{id}/cmdline")).unwrap_or_default();
            String::from_utf8_lossy(&command).contains(marker)
        })
        .collect()
}
