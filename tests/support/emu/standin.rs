//! The stand-in driver (`kernels/emu/cuda`); each test has its own copy. (U)
#![allow(unsafe_code)]
#![allow(dead_code)] // each test binary uses its part

use super::build;
use llamabi::backend::gpu::cuda::Cuda;
use llamabi::backend::gpu::images::Images;
use llamabi::backend::gpu::kernels::KERNELS;
use std::ffi::{CString, c_char, c_uint, c_void};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// Images that the stand-in can read: some kernels each, as the files of `kernels/` have.
pub fn images() -> Images {
    let image = |(i, names): (usize, &[&str])| {
        let mut text = String::from("emu\n");
        for name in names {
            text += &format!("{name}\n");
        }
        (format!("part{i}").into(), fatbin(text.as_bytes()).into())
    };
    Images {
        driver: 13_000,
        fatbins: KERNELS.chunks(7).enumerate().map(image).collect(),
    }
}

/// A fatbin's header, followed by some contents.
pub fn fatbin(contents: &[u8]) -> Vec<u8> {
    let mut bytes = 0xba55_ed50_u32.to_le_bytes().to_vec();
    bytes.extend([1, 0, 16, 0]);
    bytes.extend((contents.len() as u64).to_le_bytes());
    bytes.extend(contents);
    bytes
}

/// The content of [`images`] as a folder that LLAMABI_KERNELS can name.
pub fn kernel_folder(dir: &Path) {
    std::fs::create_dir_all(dir).unwrap();
    let params = concat!(env!("CARGO_MANIFEST_DIR"), "/kernels/params.h");
    std::fs::copy(params, dir.join("params.h")).unwrap();
    let images = images();
    std::fs::write(dir.join("driver"), format!("{}\n", images.driver)).unwrap();
    for (name, bytes) in images.fatbins {
        std::fs::write(dir.join(format!("{name}.fatbin")), bytes).unwrap();
    }
}

/// A driver that nobody else uses: the loader takes a copy of the file for another library.
pub struct Standin {
    path: PathBuf,
    set: unsafe extern "C" fn(*const c_char),
    report: unsafe extern "C" fn(*mut c_char, usize) -> c_uint,
    _share: build::Share,
}

impl Standin {
    /// A driver with these settings (`kernels/emu/cuda/state.h`).
    pub fn new(settings: &str) -> Standin {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let driver = build::driver();
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let copy = std::env::temp_dir().join(format!("libcuda-{}-{n}.so", std::process::id()));
        std::fs::copy(driver, &copy).unwrap();
        let name = CString::new(copy.to_str().unwrap()).unwrap();
        // SAFETY: a library that was built for this; its initialisers touch nothing of ours.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        // SAFETY: if dlopen has just failed on this thread, there is a message, which lives until
        // the next such call.
        assert!(!handle.is_null(), "{:?}", unsafe {
            std::ffi::CStr::from_ptr(libc::dlerror())
        });
        let symbol = |name: &std::ffi::CStr| {
            // SAFETY: the library stays open; the name ends with a NUL.
            let symbol = unsafe { libc::dlsym(handle, name.as_ptr()) };
            assert!(!symbol.is_null(), "{name:?}");
            symbol
        };
        // SAFETY: kernels/emu/cuda/state.h declares both functions with these types.
        let standin = unsafe {
            Standin {
                set: std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*const c_char)>(
                    symbol(c"emu_cuda_set"),
                ),
                report: std::mem::transmute::<
                    *mut c_void,
                    unsafe extern "C" fn(*mut c_char, usize) -> c_uint,
                >(symbol(c"emu_cuda_report")),
                path: copy,
                _share: build::Share::new(),
            }
        };
        standin.set(settings);
        standin
    }

    pub fn set(&self, settings: &str) {
        let settings = CString::new(settings).unwrap();
        // SAFETY: a string that ends with a NUL, which the function copies.
        unsafe { (self.set)(settings.as_ptr()) }
    }

    /// How much is left over or was misused; and a text that says what.
    pub fn report(&self) -> (u32, String) {
        let mut text = [0u8; 1024];
        // SAFETY: it writes at most this many bytes, including a NUL.
        let n = unsafe { (self.report)(text.as_mut_ptr().cast(), text.len()) };
        let end = text.iter().position(|&b| b == 0).unwrap();
        (n, String::from_utf8_lossy(&text[..end]).into_owned())
    }

    #[track_caller]
    pub fn assert_clean(&self) {
        let (n, text) = self.report();
        assert_eq!(n, 0, "{text}");
    }

    /// A number of the report.
    pub fn count(&self, what: &str) -> u64 {
        let (_, text) = self.report();
        let words: Vec<&str> = text.split([' ', ',', ';']).collect();
        let at = words.iter().position(|word| *word == what).expect(what);
        words[at - 1].parse().unwrap()
    }

    /// The file, which also contains a libcublasLt.
    pub fn path(&self) -> &str {
        self.path.to_str().unwrap()
    }

    pub fn open(&self) -> llamabi::Result<Cuda> {
        self.open_with(&images())
    }

    pub fn open_with(&self, images: &Images) -> llamabi::Result<Cuda> {
        Cuda::open(&[self.path.to_str().unwrap()], images, 0)
    }

    /// GPU `index` of those that `devices=` says.
    pub fn open_at(&self, index: usize) -> llamabi::Result<Cuda> {
        Cuda::open(&[self.path.to_str().unwrap()], &images(), index)
    }
}

impl Drop for Standin {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}
