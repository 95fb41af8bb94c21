//! `Device` on the CPU: `kernels/*.cu` compiled as C++, run by the emulator of `kernels/emu`.
//!
//! The library is built once per change of `kernels/` and opened at run time; none of it is part of
//! libllamabi. `LLAMABI_EMU` names another one (built with a sanitizer, say).

mod build;

use llamabi::backend::gpu::device::{Device, Geometry, Rows};
use llamabi::backend::gpu::kernels::Kernel;
use llamabi::{Error, Result};
use std::ffi::{CString, c_char, c_int, c_uint, c_void};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

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
    u64,
    *mut c_char,
    usize,
) -> c_int;

#[derive(Clone, Copy)]
struct Library {
    alloc: unsafe extern "C" fn(usize) -> u64,
    free: Free,
    to_device: Copy,
    to_host: ToHost,
    on_device: OnDevice,
    fill: Fill,
    launch: Launch,
}

fn library() -> Library {
    static LIBRARY: OnceLock<Library> = OnceLock::new();
    *LIBRARY.get_or_init(|| {
        let path = std::env::var_os("LLAMABI_EMU").map_or_else(build::emulator, PathBuf::from);
        let name = CString::new(path.to_str().unwrap()).unwrap();
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW) };
        assert!(!handle.is_null(), "{} cannot be opened", path.display());
        let symbol = |name: &str| {
            let c_name = CString::new(name).unwrap();
            let symbol = unsafe { libc::dlsym(handle, c_name.as_ptr()) };
            assert!(!symbol.is_null(), "no {name}");
            symbol
        };
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
                launch: std::mem::transmute::<*mut c_void, Launch>(symbol("emu_launch")),
            }
        }
    })
}

/// An emulated GPU.
pub struct Emu {
    library: Library,
    /// Each launch runs on another schedule.
    seed: AtomicU64,
    allocated: AtomicU64,
    memory: u64,
}

impl Emu {
    /// With this much memory.
    pub fn new(memory: u64, seed: u64) -> Arc<Emu> {
        Arc::new(Emu {
            library: library(),
            seed: AtomicU64::new(seed << 32),
            allocated: AtomicU64::new(0),
            memory,
        })
    }

    /// Run something that fails with a sentence.
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

unsafe impl Device for Emu {
    type Host = Vec<f32>;

    fn name(&self) -> String {
        "emulated GPU".into()
    }

    fn available(&self) -> Result<u64> {
        Ok(self.memory - self.allocated.load(Ordering::SeqCst))
    }

    fn allocate(&self, what: &str, bytes: usize) -> Result<u64> {
        let available = self.available()?;
        if bytes as u64 > available {
            return Err(Error::DeviceMemory {
                what: what.into(),
                needed: bytes as u64,
                available,
            });
        }
        self.allocated.fetch_add(bytes as u64, Ordering::SeqCst);
        Ok(unsafe { (self.library.alloc)(bytes) })
    }

    unsafe fn free(&self, at: u64) {
        let freed = Self::call("emu_free", |e, n| unsafe { (self.library.free)(at, e, n) });
        if !std::thread::panicking() {
            freed.unwrap();
        }
    }

    fn host(&self, n: usize) -> Result<Vec<f32>> {
        Ok(vec![f32::NAN; n])
    }

    unsafe fn clear(&self, at: u64, bytes: usize) -> Result<()> {
        Self::call("emu_fill", |e, n| unsafe {
            (self.library.fill)(at, 0, bytes, e, n)
        })
    }

    unsafe fn write(&self, to: Rows, from: &[u8]) -> Result<()> {
        for (i, row) in from.chunks(to.width).enumerate() {
            let at = to.at + (i * to.pitch) as u64;
            Self::call("a copy to the device", |e, n| unsafe {
                (self.library.to_device)(at, row.as_ptr().cast(), row.len(), e, n)
            })?;
        }
        Ok(())
    }

    unsafe fn copy(&self, to: Rows, from: u64, rows: usize) -> Result<()> {
        for i in 0..rows {
            let offset = (i * to.pitch) as u64;
            Self::call("a copy on the device", |e, n| unsafe {
                (self.library.on_device)(to.at + offset, from + offset, to.width, e, n)
            })?;
        }
        Ok(())
    }

    unsafe fn read(&self, to: &mut Vec<f32>, from: u64, floats: usize) -> Result<()> {
        Self::call("a copy to the host", |e, n| unsafe {
            (self.library.to_host)(to.as_mut_ptr().cast(), from, 4 * floats, e, n)
        })
    }

    unsafe fn launch(&self, kernel: Kernel, geometry: Geometry, params: &[u8]) -> Result<()> {
        let name = CString::new(kernel.name()).unwrap();
        let seed = self.seed.fetch_add(1, Ordering::Relaxed);
        let Geometry {
            grid,
            block,
            shared,
        } = geometry;
        Self::call(kernel.name(), |e, n| unsafe {
            (self.library.launch)(
                name.as_ptr(),
                params.as_ptr().cast(),
                params.len(),
                grid.as_ptr(),
                block.as_ptr(),
                shared as usize,
                seed,
                e,
                n,
            )
        })
    }

    fn synchronize(&self) -> Result<()> {
        Ok(())
    }
}
