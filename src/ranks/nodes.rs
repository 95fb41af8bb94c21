//! NUMA nodes: which processors belong together, and threads that stay on them.
#![allow(unsafe_code)]

use crate::{Error, Result};
use std::collections::BTreeMap;
use std::path::Path;

/// The directory in which Linux lists the nodes.
const ROOT: &str = "/sys/devices/system/node";

/// Processors, by their numbers.
pub type Processors = Vec<usize>;

/// The processors of every node of this machine, as far as this process may use them. If the system
/// says nothing about nodes, there is one node with the number 0.
pub fn of_machine() -> BTreeMap<usize, Processors> {
    usable(read(Path::new(ROOT)), &allowed())
}

/// The processors of the nodes that `devices` names, one node for each rank.
///
/// # Errors
/// [`Error::InvalidArgument`] for a node that does not exist, or of which this process may use no
/// processor.
pub fn choose(nodes: &BTreeMap<usize, Processors>, devices: &[usize]) -> Result<Vec<Processors>> {
    let of_rank = |(rank, device): (usize, &usize)| {
        nodes.get(device).cloned().ok_or_else(|| {
            let known: Vec<String> = nodes.keys().map(usize::to_string).collect();
            let known = known.join(", ");
            let expected = format!("a NUMA node whose processors this process may use: {known}");
            Error::invalid(format!("devices[{rank}]"), expected, device)
        })
    };
    devices.iter().enumerate().map(of_rank).collect()
}

/// The bytes that a node has left: memory that is free, or that the file cache uses. `None` if the
/// system does not say.
pub fn room(node: usize) -> Option<u64> {
    room_in(Path::new(ROOT), node)
}

fn room_in(root: &Path, node: usize) -> Option<u64> {
    let path = root.join(format!("node{node}/meminfo"));
    let text = std::fs::read_to_string(path).ok()?;
    let kilobytes = |name: &str| {
        // Lines are like `Node 0 MemFree:  15834072 kB`.
        let value = text.lines().find_map(|line| line.split_once(name));
        value.and_then(|(_, rest)| rest.split_whitespace().next()?.parse::<u64>().ok())
    };
    let cached = ["Active(file):", "Inactive(file):"].map(|name| kilobytes(&format!(" {name}")));
    let free = kilobytes(" MemFree:")?;
    Some((free + cached.into_iter().flatten().sum::<u64>()).saturating_mul(1024))
}

/// Keeps the calling thread, and all threads that it starts from now on, on these processors.
/// Returns whether the system accepted this.
pub fn stay_on(processors: &[usize]) -> bool {
    // SAFETY: a cpu_set_t is plain bits, for which zeros are valid.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    for &processor in processors {
        if processor < 8 * size_of::<libc::cpu_set_t>() {
            // SAFETY: the number has a bit in the set.
            unsafe { libc::CPU_SET(processor, &mut set) };
        }
    }
    // SAFETY: the set is ours and has the size that is said; 0 is the calling thread.
    unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set) == 0 }
}

/// The processors that the calling thread may use.
pub fn allowed() -> Processors {
    // SAFETY: a cpu_set_t is plain bits, for which zeros are valid.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: the set is ours and has the size that is said; 0 is the calling thread.
    let known = unsafe { libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &mut set) == 0 };
    let bits = 8 * size_of::<libc::cpu_set_t>();
    // SAFETY: the numbers have bits in the set.
    let has = |&processor: &usize| !known || unsafe { libc::CPU_ISSET(processor, &set) };
    (0..bits).filter(has).collect()
}

/// The nodes as a directory of sysfs lists them.
fn read(root: &Path) -> BTreeMap<usize, Processors> {
    let mut nodes = BTreeMap::new();
    for entry in std::fs::read_dir(root).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let number = name.to_str().and_then(|name| name.strip_prefix("node"));
        let Some(number) = number.and_then(|number| number.parse().ok()) else {
            continue;
        };
        let list = std::fs::read_to_string(entry.path().join("cpulist")).unwrap_or_default();
        nodes.insert(number, parse(&list));
    }
    nodes
}

/// The processors of a list such as `0-3,8-11`. Parts that cannot be understood are left out.
fn parse(list: &str) -> Processors {
    let mut processors = Vec::new();
    for range in list.trim().split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        if let (Ok(first), Ok(last)) = (first.parse::<usize>(), last.parse::<usize>()) {
            // No machine has more processors, and a nonsensical file must not take all memory.
            processors.extend(first..=last.min(1 << 16));
        }
    }
    processors
}

/// The nodes with their allowed processors. Nodes without allowed processors are left out.
fn usable(nodes: BTreeMap<usize, Processors>, allowed: &[usize]) -> BTreeMap<usize, Processors> {
    if nodes.is_empty() {
        return BTreeMap::from([(0, allowed.to_vec())]);
    }
    let own = |(number, mut processors): (usize, Processors)| {
        processors.retain(|processor| allowed.contains(processor));
        (number, processors)
    };
    let nodes = nodes.into_iter().map(own);
    nodes.filter(|(_, own)| !own.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_are_read_from_sysfs() {
        let root = std::env::temp_dir().join(format!("llamabi-nodes-{}", std::process::id()));
        for (node, list) in [(0, "0-2,8\n"), (1, "3-4\n"), (2, "\n"), (3, "x-,7-6\n")] {
            let dir = root.join(format!("node{node}"));
            std::fs::create_dir_all(&dir).unwrap();
            std::fs::write(dir.join("cpulist"), list).unwrap();
        }
        std::fs::write(root.join("online"), "0-3\n").unwrap();
        let nodes = usable(read(&root), &[0, 2, 3, 4, 5]);
        std::fs::remove_dir_all(&root).unwrap();
        assert_eq!(nodes, BTreeMap::from([(0, vec![0, 2]), (1, vec![3, 4])]));
        assert_eq!(choose(&nodes, &[1, 0, 1]).unwrap()[2], [3, 4]);
        let error = choose(&nodes, &[0, 2]).unwrap_err().to_string();
        assert_eq!(
            error,
            "devices[1] is 2, must be a NUMA node whose processors this process may use: 0, 1"
        );
    }

    #[test]
    fn the_room_of_a_node_is_what_is_free_or_cached() {
        let root = std::env::temp_dir().join(format!("llamabi-room-{}", std::process::id()));
        std::fs::create_dir_all(root.join("node1")).unwrap();
        let lines = "Node 1 MemTotal:  900 kB\nNode 1 MemFree:  100 kB\nNode 1 Active:  70 kB\n\
                     Node 1 Active(anon):  9 kB\nNode 1 Active(file):  20 kB\n\
                     Node 1 Inactive(file):  3 kB\n";
        std::fs::write(root.join("node1/meminfo"), lines).unwrap();
        let rooms = [room_in(&root, 1), room_in(&root, 0)];
        std::fs::remove_dir_all(&root).unwrap();
        assert_eq!(rooms, [Some(123 * 1024), None]);
    }

    #[test]
    fn without_sysfs_there_is_one_node() {
        let nodes = usable(read(Path::new("/nonexistent")), &[0, 1]);
        assert_eq!(nodes, BTreeMap::from([(0, vec![0, 1])]));
    }

    #[test]
    fn a_thread_stays_where_it_is_told() {
        let first = allowed()[0];
        std::thread::scope(|scope| {
            scope.spawn(|| {
                assert!(stay_on(&[first]));
                assert_eq!(allowed(), [first]);
                let inherits = std::thread::spawn(allowed);
                assert_eq!(inherits.join().unwrap(), [first]);
            });
        });
        assert!(!stay_on(&[]));
    }
}
