//! How much more memory this process can get.

use std::path::Path;

/// Bytes that this process can still get: the least of what the machine has free, what each of its
/// cgroups (v1 and v2) leaves, and what its limits of address space and of private memory leave.
pub fn available_bytes() -> u64 {
    let read = |path: &Path| std::fs::read_to_string(path).ok();
    available(Path::new("/"), &read)
}

type Read<'a> = &'a dyn Fn(&Path) -> Option<String>;

fn available(root: &Path, read: Read<'_>) -> u64 {
    let machine = read(&root.join("proc/meminfo")).and_then(|s| mem_available(&s));
    let cgroups = read(&root.join("proc/self/cgroup")).unwrap_or_default();
    let mounts = read(&root.join("proc/self/mounts")).unwrap_or_default();
    let limits = read(&root.join("proc/self/limits")).unwrap_or_default();
    let status = read(&root.join("proc/self/status")).unwrap_or_default();
    [
        machine,
        cgroup_available(root, &cgroups, &mounts, read),
        // RLIMIT_AS and RLIMIT_DATA.
        limit_left(&limits, "Max address space", &status, "VmSize:"),
        limit_left(&limits, "Max data size", &status, "VmData:"),
    ]
    .into_iter()
    .flatten()
    .min()
    .unwrap_or(u64::MAX)
}

/// `MemAvailable` of /proc/meminfo, in bytes.
fn mem_available(meminfo: &str) -> Option<u64> {
    kib_field(meminfo, "MemAvailable:")
}

/// A line `NAME  123 kB`, in bytes.
fn kib_field(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|l| l.strip_prefix(name))?;
    line.trim()
        .strip_suffix("kB")?
        .trim()
        .parse::<u64>()
        .ok()?
        .checked_mul(1024)
}

/// The bytes that a limit leaves, given the field that says how many are in use; `None` if there is
/// no limit.
fn limit_left(limits: &str, limit: &str, status: &str, used: &str) -> Option<u64> {
    let line = limits.lines().find_map(|l| l.strip_prefix(limit))?;
    let limit: u64 = line.split_whitespace().next()?.parse().ok()?;
    Some(limit.saturating_sub(kib_field(status, used).unwrap_or(0)))
}

/// The least that any level of the process's memory cgroups leaves.
fn cgroup_available(root: &Path, cgroups: &str, mounts: &str, read: Read<'_>) -> Option<u64> {
    let mut least: Option<u64> = None;
    for line in cgroups.lines() {
        // "0::/path" is v2; "4:memory:/path" is v1.
        let mut fields = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(path)) =
            (fields.next(), fields.next(), fields.next())
        else {
            continue;
        };
        let v1 = controllers.split(',').any(|c| c == "memory");
        if !v1 && !controllers.is_empty() {
            continue;
        }
        let Some(mount) = mount_point(mounts, v1) else {
            continue;
        };
        let top = root.join(mount.trim_start_matches('/'));
        // Inside a container the path may name a directory that only the host sees. The mount point
        // itself is then the container's group, and walking up reaches it.
        let group = top.join(path.trim_start_matches('/'));
        for level in group
            .ancestors()
            .take_while(|level| level.starts_with(&top))
        {
            let left = if v1 {
                v1_left(level, read)
            } else {
                v2_left(level, read)
            };
            if let Some(left) = left {
                least = Some(least.map_or(left, |l| l.min(left)));
            }
        }
    }
    least
}

/// Where the cgroup v1 memory controller, or cgroup v2, is mounted.
fn mount_point(mounts: &str, v1: bool) -> Option<&str> {
    mounts.lines().find_map(|line| {
        let mut f = line.split(' ').skip(1);
        let (point, kind, options) = (f.next()?, f.next()?, f.next()?);
        let found = if v1 {
            kind == "cgroup" && options.split(',').any(|o| o == "memory")
        } else {
            kind == "cgroup2"
        };
        found.then_some(point)
    })
}

fn v2_left(level: &Path, read: Read<'_>) -> Option<u64> {
    let number = |name: &str| read(&level.join(name))?.trim().parse::<u64>().ok();
    // "max" does not parse: no limit at this level.
    let limit = number("memory.max")?;
    let used = number("memory.current")?;
    let stat = read(&level.join("memory.stat")).unwrap_or_default();
    Some(limit.saturating_sub(used.saturating_sub(stat_field(&stat, "inactive_file"))))
}

fn v1_left(level: &Path, read: Read<'_>) -> Option<u64> {
    let number = |name: &str| read(&level.join(name))?.trim().parse::<u64>().ok();
    // "No limit" is a number near 2^63 here.
    let limit = number("memory.limit_in_bytes").filter(|&limit| limit < 1 << 62)?;
    let used = number("memory.usage_in_bytes")?;
    let stat = read(&level.join("memory.stat")).unwrap_or_default();
    Some(limit.saturating_sub(used.saturating_sub(stat_field(&stat, "total_inactive_file"))))
}

/// The value of a line `name value` of a memory.stat; 0 if it is missing. The kernel gives page
/// cache of this kind up on demand.
fn stat_field(stat: &str, name: &str) -> u64 {
    stat.lines()
        .find_map(|l| l.strip_prefix(name)?.strip_prefix(' ')?.trim().parse().ok())
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    const MEMINFO: &str = "MemTotal:  24000000 kB\nMemFree: 100 kB\nMemAvailable:   20000000 kB\n";
    const MOUNTS: &str = "tmpfs /sys/fs/cgroup tmpfs rw,mode=755 0 0\n\
        cgroup /sys/fs/cgroup/memory cgroup rw,relatime,memory 0 0\n\
        cgroup2 /sys/fs/cgroup/unified cgroup2 rw,relatime 0 0\n";

    fn with(files: &[(&str, &str)]) -> u64 {
        let files: HashMap<&Path, &str> = files.iter().map(|(p, s)| (Path::new(*p), *s)).collect();
        available(Path::new("/"), &|path| {
            files.get(path).map(|s| s.to_string())
        })
    }

    #[test]
    fn the_machine_alone() {
        assert_eq!(with(&[("/proc/meminfo", MEMINFO)]), 20_000_000 * 1024);
        assert_eq!(with(&[]), u64::MAX);
        assert!(available_bytes() > 0 && available_bytes() < u64::MAX);
    }

    #[test]
    fn the_tightest_level_of_cgroup_v2_counts_and_inactive_file_is_free() {
        let v2 = "cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n";
        let files = [
            ("/proc/meminfo", MEMINFO),
            ("/proc/self/mounts", v2),
            ("/proc/self/cgroup", "0::/a/b\n"),
            ("/sys/fs/cgroup/a/b/memory.max", "max\n"),
            ("/sys/fs/cgroup/a/b/memory.current", "5000\n"),
            ("/sys/fs/cgroup/a/memory.max", "1000000\n"),
            ("/sys/fs/cgroup/a/memory.current", "600000\n"),
            (
                "/sys/fs/cgroup/a/memory.stat",
                "anon 1\nfile 2\ninactive_file 100000\n",
            ),
        ];
        assert_eq!(with(&files), 500_000);
    }

    #[test]
    fn cgroup_v1_and_a_path_only_the_host_sees() {
        let files = [
            ("/proc/meminfo", MEMINFO),
            ("/proc/self/mounts", MOUNTS),
            (
                "/proc/self/cgroup",
                "4:memory:/docker/123\n2:cpuacct:/\n0::/\n",
            ),
            ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "3000000\n"),
            ("/sys/fs/cgroup/memory/memory.usage_in_bytes", "1000000\n"),
            (
                "/sys/fs/cgroup/memory/memory.stat",
                "inactive_file 7\ntotal_inactive_file 500000\n",
            ),
        ];
        assert_eq!(with(&files), 2_500_000);
        let unlimited = [
            files[0],
            files[1],
            files[2],
            (
                "/sys/fs/cgroup/memory/memory.limit_in_bytes",
                "9223372036854771712\n",
            ),
            files[4],
        ];
        assert_eq!(with(&unlimited), 20_000_000 * 1024);
    }

    #[test]
    fn more_used_than_allowed_leaves_nothing() {
        let files = [
            ("/proc/self/mounts", MOUNTS),
            ("/proc/self/cgroup", "0::/\n"),
            ("/sys/fs/cgroup/unified/memory.max", "10\n"),
            ("/sys/fs/cgroup/unified/memory.current", "20\n"),
        ];
        assert_eq!(with(&files), 0);
    }

    #[test]
    fn limits_of_the_process_count_when_set() {
        let status = "VmPeak:  900 kB\nVmSize:\t     100 kB\nVmData:\t      50 kB\n";
        let limits = "Limit  Soft Limit  Hard Limit  Units\n\
            Max data size             unlimited            unlimited            bytes\n\
            Max address space         1024000              unlimited            bytes\n";
        assert_eq!(
            with(&[("/proc/self/limits", limits), ("/proc/self/status", status)]),
            1_024_000 - 102_400
        );
        let data = limits.replace("size             unlimited", "size               61200");
        assert_eq!(
            with(&[("/proc/self/limits", &data), ("/proc/self/status", status)]),
            61_200 - 51_200
        );
        let unlimited = limits.replace("1024000  ", "unlimited");
        assert_eq!(
            with(&[
                ("/proc/self/limits", &unlimited),
                ("/proc/meminfo", MEMINFO)
            ]),
            20_000_000 * 1024
        );
    }
}
