//! What C passes: pointers, texts, lists and structures that grow. `gpuvm.h` says what each pointer has to be; this module alone follows
//! them, and only its callers are C functions.

use std::{
    ffi::{CStr, c_char, c_void},
    ptr::NonNull,
    time::Duration,
};

use bytemuck::Zeroable;

use crate::code::{Failure, Result};

/// The most bytes that a structure of options may claim to have: more is a number that nothing has set.
const OPTIONS_BYTES_MAX: u64 = 4096;

fn checked<T>(what: &'static str, pointer: *const T) -> Result<NonNull<T>> {
    let is = match NonNull::new(pointer.cast_mut()) {
        None => "is NULL",
        Some(_) if !pointer.is_aligned() => "is not aligned to what it points to",
        Some(pointer) => return Ok(pointer),
    };
    Err(Failure::Pointer { what, is })
}

/// Where C wants a result.
pub struct Out<T>(NonNull<T>);

impl<T> Out<T> {
    /// A place that has to be there.
    ///
    /// # Errors
    /// [`Failure::Pointer`].
    pub fn new(what: &'static str, place: *mut T) -> Result<Self> {
        checked(what, place).map(Self)
    }

    /// A place that may be NULL.
    ///
    /// # Errors
    /// [`Failure::Pointer`] for one that is not aligned.
    pub fn optional(what: &'static str, place: *mut T) -> Result<Option<Self>> {
        (!place.is_null()).then(|| Self::new(what, place)).transpose()
    }

    /// Stores the result.
    pub fn set(&self, value: T) {
        // SAFETY: C's caller passed a place for a `T`, which is its own until the call returns.
        unsafe { self.0.write(value) }
    }
}

/// A text that has to be there.
///
/// # Errors
/// [`Failure::Pointer`], [`Failure::Text`].
pub fn text<'a>(what: &'static str, text: *const c_char) -> Result<&'a str> {
    let text = checked(what, text)?;
    // SAFETY: C's caller passed a text that ends with a zero and stays until the call returns.
    let text = unsafe { CStr::from_ptr(text.as_ptr()) };
    text.to_str().map_err(|error| Failure::Text {
        what,
        byte: error.valid_up_to(),
    })
}

/// A text that may be NULL.
///
/// # Errors
/// [`Failure::Text`].
pub fn optional_text<'a>(what: &'static str, given: *const c_char) -> Result<Option<&'a str>> {
    (!given.is_null()).then(|| text(what, given)).transpose()
}

/// This many values one after the other; the pointer may be NULL where there are none.
///
/// # Errors
/// [`Failure::Pointer`], [`Failure::Value`] for more than an address space holds.
pub fn list<'a, T>(what: &'static str, first: *const T, count: u64) -> Result<&'a [T]> {
    let Some(count) = counted::<T>(what, count)? else {
        return Ok(&[]);
    };
    let first = checked(what, first)?;
    // SAFETY: C's caller passed as many values, which stay and do not change until the call returns.
    Ok(unsafe { std::slice::from_raw_parts(first.as_ptr(), count) })
}

/// None for no value.
fn counted<T>(what: &'static str, count: u64) -> Result<Option<usize>> {
    let bytes = count.checked_mul(size_of::<T>() as u64);
    match bytes.map(isize::try_from) {
        Some(Ok(0)) => Ok(None),
        Some(Ok(_)) => Ok(Some(count as usize)),
        _ => Err(too_many(what, count)),
    }
}

/// More values than there can be.
pub fn too_many(what: &'static str, count: u64) -> Failure {
    Failure::value(what, count, "an address space does not hold as much")
}

/// A field that a later version may use.
///
/// # Errors
/// [`Failure::Value`] where it is set: the program knows more than this library.
pub fn unused(what: &'static str, number: u32) -> Result<()> {
    match number {
        0 => Ok(()),
        set => Err(Failure::value(
            what,
            set,
            "this library has no use for it; set it to 0, or use a newer one",
        )),
    }
}

/// This many bytes to read.
///
/// # Errors
/// As [`list`].
pub fn bytes<'a>(what: &'static str, first: *const c_void, count: u64) -> Result<&'a [u8]> {
    list(what, first.cast(), count)
}

/// This many values to write.
///
/// # Errors
/// As [`list`].
pub fn list_mut<'a, T>(what: &'static str, first: *mut T, count: u64) -> Result<&'a mut [T]> {
    let Some(count) = counted::<T>(what, count)? else {
        return Ok(&mut []);
    };
    let first = checked(what, first)?;
    // SAFETY: C's caller passed as many values, which are its own until the call returns.
    Ok(unsafe { std::slice::from_raw_parts_mut(first.as_ptr(), count) })
}

/// This many bytes to write.
///
/// # Errors
/// As [`list`].
pub fn bytes_mut<'a>(what: &'static str, first: *mut c_void, count: u64) -> Result<&'a mut [u8]> {
    list_mut(what, first.cast(), count)
}

/// Texts, all of which have to be there.
///
/// # Errors
/// As [`list`] and [`text`].
pub fn texts<'a>(what: &'static str, first: *const *const c_char, count: u64) -> Result<Vec<&'a str>> {
    let texts = list(what, first, count)?;
    texts.iter().map(|given| text(what, *given)).collect()
}

/// Copies a text with its zero to where there is room for `capacity` bytes, as far as it fits, and tells its length without the zero.
///
/// # Errors
/// [`Failure::Pointer`].
pub fn put_text(what: &'static str, text: &str, to: *mut c_char, capacity: u64, length: *mut u64) -> Result<()> {
    let to = bytes_mut(what, to.cast(), capacity)?;
    let length = Out::optional("length", length)?;
    if let Some(room) = to.len().checked_sub(1) {
        let mut fits = text.len().min(room);
        while !text.is_char_boundary(fits) {
            fits -= 1;
        }
        to[..fits].copy_from_slice(&text.as_bytes()[..fits]);
        to[fits] = 0;
    }
    if let Some(length) = length {
        length.set(text.len() as u64);
    }
    Ok(())
}

/// A structure whose first field is its size in bytes as the program knows it. Later versions of it have more fields, which are zero where
/// the program does not know them.
pub trait Growing: Copy + Zeroable {
    /// Its name in C.
    const NAME: &'static str;
}

/// The size that a structure says it has.
fn size_of_given<T: Growing>(given: NonNull<T>) -> Result<usize> {
    // SAFETY: C's caller passed a structure that begins with its size.
    let size = unsafe { given.cast::<u64>().read() };
    match size {
        8..=OPTIONS_BYTES_MAX => Ok(size as usize),
        _ => {
            let reason = format!("set it to sizeof({})", T::NAME);
            Err(Failure::value("size", size, reason))
        }
    }
}

/// Options that were given; the defaults for NULL.
///
/// # Errors
/// [`Failure::Pointer`]; [`Failure::Value`] for a size that cannot be, or a field of a later version that is set.
pub fn options<T: Growing>(what: &'static str, given: *const T) -> Result<T> {
    let mut options = T::zeroed();
    if given.is_null() {
        return Ok(options);
    }
    let given = checked(what, given)?;
    let size = size_of_given(given)?;
    // SAFETY: C's caller passed a structure of `size` bytes.
    let bytes = unsafe { std::slice::from_raw_parts(given.as_ptr().cast::<u8>(), size) };
    let (known, later) = bytes.split_at(size.min(size_of::<T>()));
    if later.iter().any(|byte| *byte != 0) {
        let reason = format!(
            "this library knows {} bytes, and a later field is set; use a newer one",
            size_of::<T>()
        );
        return Err(Failure::value("size", size, reason));
    }
    // SAFETY: `known` has at most the bytes of a `T`, and any bytes of C's structure are one: it has numbers and pointers alone.
    unsafe { std::ptr::copy_nonoverlapping(known.as_ptr(), (&raw mut options).cast(), known.len()) };
    Ok(options)
}

/// A place for a structure of results, with its size set.
pub struct OutStruct<T> {
    place: NonNull<T>,
    size: usize,
}

impl<T: Growing> OutStruct<T> {
    /// A place that has to be there.
    ///
    /// # Errors
    /// [`Failure::Pointer`], [`Failure::Value`] for a size that cannot be.
    pub fn new(what: &'static str, place: *mut T) -> Result<Self> {
        let place = checked(what, place.cast_const())?;
        let size = size_of_given(place)?;
        Ok(Self { place, size })
    }

    /// A place that may be NULL.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn optional(what: &'static str, place: *mut T) -> Result<Option<Self>> {
        (!place.is_null()).then(|| Self::new(what, place)).transpose()
    }

    /// Stores what the program knows of the result; fields that this library does not know become zero, and the size stays.
    pub fn set(&self, value: T) {
        let known = self.size.min(size_of::<T>());
        let fields = (&raw const value).cast::<u8>();
        let place = self.place.as_ptr().cast::<u8>();
        let head = size_of::<u64>();
        // SAFETY: C's caller passed a place of `size` bytes, which is its own until the call returns. The first field stays.
        unsafe {
            std::ptr::copy_nonoverlapping(fields.add(head), place.add(head), known - head);
            std::ptr::write_bytes(place.add(known), 0, self.size - known);
        }
    }
}

/// One of an enumeration's values by its number.
///
/// # Errors
/// [`Failure::Value`], which tells the largest.
pub fn one_of<T: Copy>(what: &'static str, number: u32, values: &[T]) -> Result<T> {
    values.get(number as usize).copied().ok_or_else(|| {
        let reason = format!("it must be between 0 and {}", values.len() - 1);
        Failure::value(what, number, reason)
    })
}

/// This many nanoseconds; none for 0.
pub fn time(ns: u64) -> Option<Duration> {
    (ns != 0).then(|| Duration::from_nanos(ns))
}

/// A time as nanoseconds.
pub fn ns(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
