//! `Device` on the CPU: `kernels/*.cu` compiled as C++, run by the emulator of `kernels/emu`. (U)
//!
//! The library is built once after each change of `kernels/` and opened at run time; none of it is
//! part of libllamabi. `LLAMABI_EMU` names another build (with a sanitizer, say); `EMU_SEED` picks
//! the schedules.
#![allow(unsafe_code)]
#![allow(dead_code)] // each test binary uses its part

pub mod build;
pub mod real;
pub mod standin;

use llamabi::backend::gpu::device::{BOX, Device, Gate, Geometry, Rows, TensorMap};
use llamabi::backend::gpu::kernels::Kernel;
use llamabi::backend::gpu::room::Room;
use llamabi::{Error, Result};
use std::collections::HashMap;
use std::ffi::{CString, c_char, c_int, c_uint, c_void};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex, OnceLock};
use std::time::Duration;

type Copy = unsafe extern "C" fn(u64, *const c_void, usize, *mut c_char, usize) -> c_int;
type ToHost = unsafe extern "C" fn(*mut c_void, u64, usize, *mut c_char, usize) -> c_int;
type OnDevice = unsafe extern "C" fn(u64, u64, usize, *mut c_char, usize) -> c_int;
type Fill = unsafe extern "C" fn(u64, u8, usize, *mut c_char, usize) -> c_int;
type Free = unsafe extern "C" fn(u64, *mut c_char, usize) -> c_int;
type Launch = unsafe extern "C" fn(
    *const c_char,
    *const c_void,
    usize,
    *const c_uint,
    *const c_uint,
    usize,
    c_uint,
    u64,
    *mut c_char,
    usize,
) -> c_int;

type Map =
    unsafe extern "C" fn(*mut TensorMap, u64, u64, u64, u64, u32, u32, *mut c_char, usize) -> c_int;

#[derive(Clone, Copy)]
struct Library {
    alloc: unsafe extern "C" fn(usize) -> u64,
    free: Free,
    to_device: Copy,
    to_host: ToHost,
    on_device: OnDevice,
    fill: Fill,
    launch: Launch,
    tensor_map: Map,
}

fn library() -> Library {
    static LIBRARY: OnceLock<Library> = OnceLock::new();
    *LIBRARY.get_or_init(|| {
        let path = std::env::var_os("LLAMABI_EMU");
        let path = path.map_or_else(build::emulator, PathBuf::from);
        let name = CString::new(path.to_str().unwrap()).unwrap();
        // SAFETY: what kernels/test.sh built; it runs nothing when it is opened.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW) };
        assert!(!handle.is_null(), "{} cannot be opened", path.display());
        let symbol = |name: &str| {
            let c_name = CString::new(name).unwrap();
            // SAFETY: the handle is never closed.
            let symbol = unsafe { libc::dlsym(handle, c_name.as_ptr()) };
            assert!(!symbol.is_null(), "no {name}");
            symbol
        };
        // SAFETY: the signatures of kernels/emu/emu.h.
        unsafe {
            Library {
                alloc: std::mem::transmute::<*mut c_void, unsafe extern "C" fn(usize) -> u64>(
                    symbol("emu_alloc"),
                ),
                free: std::mem::transmute::<*mut c_void, Free>(symbol("emu_free")),
                to_device: std::mem::transmute::<*mut c_void, Copy>(symbol("emu_copy_to_device")),
                to_host: std::mem::transmute::<*mut c_void, ToHost>(symbol("emu_copy_to_host")),
                on_device: std::mem::transmute::<*mut c_void, OnDevice>(symbol(
                    "emu_copy_on_device",
                )),
                fill: std::mem::transmute::<*mut c_void, Fill>(symbol("emu_fill")),
                launch: std::mem::transmute::<*mut c_void, Launch>(symbol("emu_launch_clusters")),
                tensor_map: std::mem::transmute::<*mut c_void, Map>(symbol("emu_tensor_map")),
            }
        }
    })
}

/// An emulated GPU.
pub struct Emu {
    library: LazyLock<Library>, // not opened where a real device takes the place of this one
    /// Each launch runs on another schedule.
    seed: AtomicU64,
    /// Live allocations: address and bytes.
    live: Mutex<HashMap<u64, u64>>,
    most: AtomicU64,
    memory: u64,
    /// How much more memory `available` reports than there is, as if another process took it in the
    /// meantime.
    promised: u64,
    /// How many more calls succeed before all fail; or [`NEVER`].
    good: AtomicU64,
    /// Milliseconds for which it does nothing before the next thing that it is asked to do.
    stall: AtomicU64,
    /// And for which it records more slowly.
    capture_stall: AtomicU64,
    records: bool,
    runs_ahead: bool,
    gate: Gate,
    /// Steps that began and answers that were waited for, in order.
    order: Mutex<String>,
    /// Whether it has compute capability 9.0, with the kernels for it.
    hopper: bool,
    /// Launches of these kernels: products, attention.
    hoppers: [AtomicU64; 2],
    /// How many of the products used tiles of 128 columns or fewer, and in how many blocks shared
    /// tiles.
    halves: AtomicU64,
    clustered: AtomicU64,
    units: u32,
    /// Launches since `begin_capture`.
    recording: Mutex<Option<Vec<Recorded>>>,
    replays: AtomicU64,
    _share: build::Share,
}

/// A launch that was asked for.
pub struct Recorded {
    kernel: Kernel,
    geometry: Geometry,
    params: Vec<u8>,
}

const NEVER: u64 = u64::MAX;

impl Emu {
    /// A device with this much memory. Launches follow the schedules of this seed, moved by
    /// `EMU_SEED`.
    pub fn new(memory: u64, seed: u64) -> Arc<Emu> {
        Self::with_promise(memory, 0, seed)
    }

    /// A device with `promised` bytes less memory than it reports.
    pub fn with_promise(memory: u64, promised: u64, seed: u64) -> Arc<Emu> {
        Arc::new(Self::made(memory, promised, seed, true, true))
    }

    /// A device that cannot record launches.
    pub fn without_graphs(memory: u64, seed: u64) -> Arc<Emu> {
        Arc::new(Self::made(memory, 0, seed, false, true))
    }

    /// A device on which a step begins only when the answer of the previous one has been read.
    pub fn step_by_step(memory: u64, seed: u64) -> Arc<Emu> {
        Arc::new(Self::made(memory, 0, seed, true, false))
    }

    /// One of compute capability 9.0, as an H100 is, or [`Emu::new`].
    pub fn either(hopper: bool, memory: u64, seed: u64) -> Arc<Emu> {
        match hopper {
            true => Self::hopper(memory, seed, 132),
            false => Self::new(memory, seed),
        }
    }

    /// A device of compute capability 9.0 with so many multiprocessors.
    pub fn hopper(memory: u64, seed: u64, units: u32) -> Arc<Emu> {
        let hopper = true;
        Arc::new(Emu {
            hopper,
            units,
            ..Self::made(memory, 0, seed, true, true)
        })
    }

    fn made(memory: u64, promised: u64, seed: u64, records: bool, runs_ahead: bool) -> Emu {
        let base = std::env::var("EMU_SEED").map_or(0, |seed| seed.parse().unwrap());
        Emu {
            library: LazyLock::new(library),
            seed: AtomicU64::new((base + seed) << 32),
            live: Mutex::default(),
            most: AtomicU64::new(0),
            memory,
            promised,
            good: AtomicU64::new(NEVER),
            stall: AtomicU64::new(0),
            capture_stall: AtomicU64::new(0),
            records,
            runs_ahead,
            gate: Gate::default(),
            order: Mutex::default(),
            hopper: false,
            hoppers: Default::default(),
            halves: AtomicU64::new(0),
            clustered: AtomicU64::new(0),
            units: 132,
            recording: Mutex::default(),
            replays: AtomicU64::new(0),
            _share: build::Share::new(),
        }
    }

    /// The order of everything so far: `<` is the first launch of a step, `>` an answer that was
    /// waited for.
    pub fn order(&self) -> String {
        self.order.lock().unwrap().clone()
    }

    /// How often a graph has run.
    pub fn replays(&self) -> u64 {
        self.replays.load(Ordering::SeqCst)
    }

    /// How often a kernel for compute capability 9.0 has run: products, attention.
    pub fn hoppers(&self) -> (u64, u64) {
        let [products, attention] = &self.hoppers;
        (
            products.load(Ordering::SeqCst),
            attention.load(Ordering::SeqCst),
        )
    }

    /// How many of the products used tiles of 128 columns or fewer.
    pub fn halves(&self) -> u64 {
        self.halves.load(Ordering::SeqCst)
    }

    /// In how many of them blocks were clusters that shared tiles.
    pub fn clustered(&self) -> u64 {
        self.clustered.load(Ordering::SeqCst)
    }

    /// Bytes that are allocated now, and the most that ever were.
    pub fn allocated(&self) -> (u64, u64) {
        let now = self.live.lock().unwrap().values().sum();
        (now, self.most.load(Ordering::SeqCst))
    }

    /// Lets the device do `n` more things; afterwards everything fails.
    pub fn break_after(&self, n: u64) {
        self.good.store(n, Ordering::SeqCst);
    }

    /// Lets the device do nothing for this time, before the next thing that it is asked to do.
    pub fn stall(&self, time: Duration) {
        self.stall.store(time.as_millis() as u64, Ordering::SeqCst);
    }

    /// Lets every record take so much longer, in which other threads may do what they must not.
    pub fn stall_captures(&self, time: Duration) {
        self.capture_stall
            .store(time.as_millis() as u64, Ordering::SeqCst);
    }

    /// Counts one thing that the device is asked to do.
    fn work(&self, what: &str) -> Result<()> {
        let recording = self.recording.lock().unwrap().is_some();
        assert!(!recording, "{what} while launches are recorded");
        std::thread::sleep(Duration::from_millis(self.stall.swap(0, Ordering::SeqCst)));
        let count = |n| match n {
            NEVER => Some(NEVER),
            n => Some(u64::saturating_sub(n, 1)),
        };
        let before = self
            .good
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, count);
        match before {
            Ok(0) => Err(Error::Device(format!("{what}: a planted failure"))),
            _ => Ok(()),
        }
    }

    /// Runs something that returns a message if it fails.
    fn call(what: &str, call: impl FnOnce(*mut c_char, usize) -> c_int) -> Result<()> {
        let mut text = [0u8; 600];
        if call(text.as_mut_ptr().cast(), text.len()) == 0 {
            return Ok(());
        }
        let end = text.iter().position(|&b| b == 0).unwrap_or(text.len());
        let text = String::from_utf8_lossy(&text[..end]);
        Err(Error::Device(format!("{what}: {text}")))
    }
}

// SAFETY: allocations are the emulator's own, distinct and live until they are freed.
unsafe impl Device for Emu {
    type Host = Vec<f32>;
    type Graph = Vec<Recorded>;

    fn gate(&self) -> &Gate {
        &self.gate
    }

    fn name(&self) -> String {
        "emulated GPU".into()
    }

    fn available(&self) -> Result<u64> {
        Ok(self.memory + self.promised - self.allocated().0)
    }

    fn allocate(&self, what: &str, bytes: usize) -> Result<u64> {
        let recording = self.recording.lock().unwrap().is_some();
        assert!(!recording, "an allocation while launches are recorded");
        let mut live = self.live.lock().unwrap();
        let now: u64 = live.values().sum();
        let available = self.memory - now;
        if bytes as u64 > available {
            return Err(Error::DeviceMemory {
                what: what.into(),
                needed: bytes as u64,
                available,
            });
        }
        // SAFETY: no pointers.
        let at = unsafe { (self.library.alloc)(bytes) };
        assert_ne!(at, 0, "the emulator has no memory");
        live.insert(at, bytes as u64);
        self.most.fetch_max(now + bytes as u64, Ordering::SeqCst);
        Ok(at)
    }

    unsafe fn free(&self, at: u64) -> Result<()> {
        self.live.lock().unwrap().remove(&at);
        // SAFETY: by this function's contract; `e` has `n` bytes.
        let freed = Self::call("emu_free", |e, n| unsafe { (self.library.free)(at, e, n) });
        if !std::thread::panicking() {
            freed.unwrap();
        }
        Ok(())
    }

    fn host(&self, n: usize) -> Result<Vec<f32>> {
        Ok(vec![f32::NAN; n])
    }

    unsafe fn clear(&self, at: u64, bytes: usize) -> Result<()> {
        self.work("emu_fill")?;
        // SAFETY: the emulator checks both ends; `e` has `n` bytes.
        Self::call("emu_fill", |e, n| unsafe {
            (self.library.fill)(at, 0, bytes, e, n)
        })
    }

    unsafe fn write(&self, to: Rows, from: &[u8]) -> Result<()> {
        self.work("a copy to the device")?;
        for (i, row) in from.chunks(to.width).enumerate() {
            let at = to.at + (i * to.pitch) as u64;
            // SAFETY: `row` is live, the emulator checks the other end; `e` has `n` bytes.
            Self::call("a copy to the device", |e, n| unsafe {
                (self.library.to_device)(at, row.as_ptr().cast(), row.len(), e, n)
            })?;
        }
        Ok(())
    }

    unsafe fn copy(&self, to: Rows, from: u64, rows: usize) -> Result<()> {
        self.work("a copy on the device")?;
        for i in 0..rows {
            let offset = (i * to.pitch) as u64;
            // SAFETY: the emulator checks both ends; `e` has `n` bytes.
            Self::call("a copy on the device", |e, n| unsafe {
                (self.library.on_device)(to.at + offset, from + offset, to.width, e, n)
            })?;
        }
        Ok(())
    }

    unsafe fn read(&self, from: Rows, to: &mut [u8]) -> Result<()> {
        self.work("a copy of rows to the host")?;
        for (i, row) in to.chunks_exact_mut(from.width).enumerate() {
            let at = from.at + (i * from.pitch) as u64;
            // SAFETY: `row` is live, the emulator checks the other end; `e` has `n` bytes.
            Self::call("a copy of rows to the host", |e, n| unsafe {
                (self.library.to_host)(row.as_mut_ptr().cast(), at, row.len(), e, n)
            })?;
        }
        Ok(())
    }

    unsafe fn fetch(&self, to: &mut Vec<f32>, at: usize, from: u64, floats: usize) -> Result<()> {
        self.work("a copy to the host")?;
        let to = &mut to[at..][..floats];
        // SAFETY: the emulator checks both ends; `e` has `n` bytes.
        Self::call("a copy to the host", |e, n| unsafe {
            (self.library.to_host)(to.as_mut_ptr().cast(), from, 4 * floats, e, n)
        })
    }

    fn wait(&self, _: &mut Vec<f32>) -> Result<()> {
        self.order.lock().unwrap().push('>');
        self.work("waiting for a copy")
    }

    unsafe fn launch(&self, kernel: Kernel, geometry: Geometry, params: &[u8]) -> Result<()> {
        if let Some(recording) = &mut *self.recording.lock().unwrap() {
            recording.push(Recorded {
                kernel,
                geometry,
                params: params.to_vec(),
            });
            return Ok(());
        }
        let name = CString::new(kernel.name()).unwrap();
        let seed = self.seed.fetch_add(1, Ordering::Relaxed);
        let Geometry {
            grid,
            block,
            shared,
            cluster,
            // Only the stand-in driver pays attention to this.
            dependent: _,
        } = geometry;
        self.work(kernel.name())?;
        if kernel.name().starts_with("embed") {
            self.order.lock().unwrap().push('<');
        }
        let which = usize::from(kernel.name().starts_with("attend"));
        let hopper = u64::from(kernel.is_hopper());
        self.hoppers[which].fetch_add(hopper, Ordering::SeqCst);
        let small = ["_hopper_half_", "_hopper_quarter_"].map(|size| kernel.name().contains(size));
        self.halves
            .fetch_add(u64::from(small.contains(&true)), Ordering::SeqCst);
        self.clustered
            .fetch_add(u64::from(cluster > 1), Ordering::SeqCst);
        // SAFETY: name and parameters are live; the emulator checks their size and every access of
        // the kernel; `e` has `n` bytes.
        Self::call(kernel.name(), |e, n| unsafe {
            (self.library.launch)(
                name.as_ptr(),
                params.as_ptr().cast(),
                params.len(),
                grid.as_ptr(),
                block.as_ptr(),
                shared as usize,
                cluster,
                seed,
                e,
                n,
            )
        })
    }

    unsafe fn tensor_map(&self, of: Rows, rows: usize, box_rows: u32) -> Result<Option<TensorMap>> {
        if !self.hopper {
            return Ok(None);
        }
        let mut map = TensorMap::default();
        let (columns, rows, pitch) = (of.width as u64 / 2, rows as u64, of.pitch as u64);
        // SAFETY: `map` has the right size and alignment; the emulator checks the rest; `e` has `n`
        // bytes.
        Self::call("a tensor map", |e, n| unsafe {
            (self.library.tensor_map)(
                &mut map, of.at, columns, rows, pitch, BOX[1], box_rows, e, n,
            )
        })?;
        Ok(Some(map))
    }

    fn multiprocessors(&self) -> u32 {
        self.units
    }

    fn room(&self) -> Room {
        Room {
            whole: 228 << 10,
            reserved: 1024,
            most: 227 << 10,
            is_90: self.hopper,
        }
    }

    fn records(&self) -> bool {
        self.records
    }

    fn runs_ahead(&self) -> bool {
        self.runs_ahead
    }

    fn begin_capture(&self) -> Result<()> {
        self.work("the beginning of a capture")?;
        *self.recording.lock().unwrap() = Some(Vec::new());
        let stall = self.capture_stall.load(Ordering::SeqCst);
        std::thread::sleep(Duration::from_millis(stall));
        Ok(())
    }

    fn end_capture(&self) -> Result<Vec<Recorded>> {
        let recorded = self.recording.lock().unwrap().take();
        self.work("the end of a capture")?;
        Ok(recorded.expect("launches are recorded"))
    }

    unsafe fn replay(&self, graph: &Vec<Recorded>) -> Result<()> {
        self.replays.fetch_add(1, Ordering::SeqCst);
        for one in graph {
            // SAFETY: by this function's contract.
            unsafe { self.launch(one.kernel, one.geometry, &one.params) }?;
        }
        Ok(())
    }

    fn synchronize(&self) -> Result<()> {
        Ok(())
    }
}
