//! Models that several ranks compute.

#![allow(non_camel_case_types)]

use std::ffi::{c_char, c_void};

// Section: Several ranks

/// How long a function of `llama_comm` may go on. It belongs to the library and lives for the time
/// of one call.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct llama_wait {
    /// To be asked at least every millisecond while the function waits, with `context`, on the same
    /// thread. 0 means that the function must give up. Inside, the library may call `receive`.
    pub go_on: Option<unsafe extern "C" fn(context: *const c_void) -> i32>,
    /// Passed to `go_on`.
    pub context: *const c_void,
}

/// How the ranks of a model in several processes reach each other. `llamabi_mpi.h` fills one with
/// any MPI.
///
/// Every function returns 0 when it is done, 1 when it gave up because `go_on` said so, and a
/// negative number of the host's when it failed. One thread at a time calls them: the one that
/// called `llama_build`, then the thread of the handle's engine; or the one that called
/// `llama_worker_run`. They call nothing of this library.
///
/// After `all_gather` or `all_to_all` returned anything but 0, neither is called again. `send` and
/// `receive` are, briefly, to find out which ranks are left and to tell them. Memory of a call that
/// gave up or failed is never freed, so the host's library may still write to it.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct llama_comm {
    /// `sizeof(llama_comm)` of the header the caller was compiled with.
    pub struct_size: u32,
    /// The number of this rank.
    pub rank: u32,
    /// The number of ranks, 2 to 64.
    pub size: u32,
    /// Must be 0.
    pub reserved0: u32,
    /// Passed to the functions. It must live until `llama_free` has returned and no call on the
    /// handle runs, or until `llama_worker_run` has returned.
    pub user_data: *mut c_void,
    /// Sends a message of `n` bytes. Messages between two ranks keep their order. It returns when
    /// `bytes` may be overwritten.
    pub send: Option<
        unsafe extern "C" fn(
            user_data: *mut c_void,
            to: u32,
            bytes: *const c_void,
            n: usize,
            wait: *const llama_wait,
        ) -> i32,
    >,
    /// Receives a whole message of a rank and writes its length to `n`, or receives nothing. A
    /// message that is longer than `capacity` is a failure, with its length in `n`.
    pub receive: Option<
        unsafe extern "C" fn(
            user_data: *mut c_void,
            from: u32,
            bytes: *mut c_void,
            capacity: usize,
            n: *mut usize,
            wait: *const llama_wait,
        ) -> i32,
    >,
    /// Gives `n` bytes to every rank. `all` gets `n` bytes of each, by rank. All ranks call it with
    /// the same `n`, at most 2^30.
    pub all_gather: Option<
        unsafe extern "C" fn(
            user_data: *mut c_void,
            mine: *const c_void,
            all: *mut c_void,
            n: usize,
            wait: *const llama_wait,
        ) -> i32,
    >,
    /// Gives `n` bytes of `to` to each rank, by rank. `from` gets `n` bytes of each.
    pub all_to_all: Option<
        unsafe extern "C" fn(
            user_data: *mut c_void,
            to: *const c_void,
            from: *mut c_void,
            n: usize,
            wait: *const llama_wait,
        ) -> i32,
    >,
}

/// What is known of a rank. Of a handle without ranks, number 0 is the handle.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct llama_rank {
    /// `sizeof(llama_rank)`, set by the caller.
    pub struct_size: u32,
    /// Its number.
    pub rank: u32,
    /// `LLAMA_DEVICE_*`.
    pub device: i32,
    /// Its process, on `host`.
    pub pid: u32,
    /// Bytes of its weights.
    pub weight_bytes: u64,
    /// Bytes of its part of the KV cache.
    pub kv_bytes: u64,
    /// The time that it has spent in exchanges, the waiting for other ranks included. Of a rank in
    /// another process, as it said last, within about a second. Exchanges by NCCL are not counted:
    /// they are part of the GPU's work.
    pub exchange_ms: f64,
    /// The time since a rank in another process gave a sign of life. While it is well, at most
    /// about a second.
    pub silent_ms: f64,
    /// The name of its machine.
    pub host: [c_char; 64],
    /// Its device in words.
    pub device_name: [c_char; 128],
}
