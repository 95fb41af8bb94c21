//! The host's functions for tests, in which ranks are threads: queues of messages, and connections
//! that fail.

use crate::ranks::processes::comm::{Comm, GoOn, Moved};
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Sender, receiver, and whether it is a piece of an exchange.
type Way = (usize, usize, bool);

/// The messages that are on their way.
#[derive(Default)]
pub struct Post {
    queues: Mutex<HashMap<Way, VecDeque<Vec<u8>>>>,
    /// Ranks to which connections fail.
    pub gone: [AtomicBool; 8],
}

pub struct Queues {
    pub post: Arc<Post>,
    pub rank: usize,
    pub size: usize,
}

impl Queues {
    pub fn put(&self, to: usize, exchange: bool, bytes: Vec<u8>) {
        let mut queues = self.post.queues.lock().unwrap();
        let queue = queues.entry((self.rank, to, exchange)).or_default();
        queue.push_back(bytes);
    }

    fn get(
        &self,
        from: usize,
        exchange: bool,
        go_on: GoOn<'_>,
    ) -> std::result::Result<Vec<u8>, Moved> {
        loop {
            // As with a socket, messages that were sent before the connection failed come first.
            let is_gone = self.post.gone[from].load(Ordering::Relaxed);
            let mut queues = self.post.queues.lock().unwrap();
            let queue = queues.entry((from, self.rank, exchange)).or_default();
            if let Some(bytes) = queue.pop_front() {
                return Ok(bytes);
            }
            drop(queues);
            if is_gone {
                return Err(Moved::Failed(-75));
            }
            if !go_on() {
                return Err(Moved::GivenUp);
            }
            std::thread::sleep(Duration::from_micros(100));
        }
    }

    fn exchange(&self, to: impl Fn(usize) -> Vec<f32>, all: &mut [f32], go_on: GoOn<'_>) -> Moved {
        for rank in 0..self.size {
            let bytes = to(rank).iter().flat_map(|x| x.to_le_bytes()).collect();
            self.put(rank, true, bytes);
        }
        let each = all.len() / self.size;
        for (rank, to) in all.chunks_exact_mut(each.max(1)).enumerate() {
            let bytes = match self.get(rank, true, go_on) {
                Ok(bytes) => bytes,
                Err(moved) => return moved,
            };
            let (numbers, _) = bytes.as_chunks::<4>();
            assert_eq!(numbers.len(), each, "every rank gives as many");
            for (to, &from) in to.iter_mut().zip(numbers) {
                *to = f32::from_le_bytes(from);
            }
        }
        Moved::Done
    }
}

impl Comm for Queues {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.size
    }

    fn send(&self, to: usize, bytes: &[u8], _go_on: GoOn<'_>) -> Moved {
        match self.post.gone[to].load(Ordering::Relaxed) {
            true => Moved::Failed(-75),
            false => {
                self.put(to, false, bytes.to_vec());
                Moved::Done
            }
        }
    }

    fn receive(&self, from: usize, bytes: &mut [u8], n: &mut usize, go_on: GoOn<'_>) -> Moved {
        match self.get(from, false, go_on) {
            Ok(message) => {
                *n = message.len();
                bytes[..message.len()].copy_from_slice(&message);
                Moved::Done
            }
            Err(moved) => moved,
        }
    }

    fn all_gather(&self, mine: &[f32], all: &mut [f32], go_on: GoOn<'_>) -> Moved {
        self.exchange(|_| mine.to_vec(), all, go_on)
    }

    fn all_to_all(&self, to: &[f32], from: &mut [f32], go_on: GoOn<'_>) -> Moved {
        let each = to.len() / self.size;
        self.exchange(|rank| to[rank * each..][..each].to_vec(), from, go_on)
    }
}
