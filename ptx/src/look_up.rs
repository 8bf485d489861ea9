//! The instructions of a look-up.

use std::fmt::{Result, Write as _};

use crate::access::Access;
use crate::model::{Address, Guard};
use crate::sharing::{Group, Share, Used};
use crate::table::{AT_HOME, ENTRY_BYTES, TableLayout, WINDOW};

/// The registers of a block.
const BLOCK: &str =
    "{ .reg .b64 %gpuvm_a, %gpuvm_e, %gpuvm_t; .reg .b32 %gpuvm_i, %gpuvm_h, %gpuvm_w; .reg .pred %gpuvm_p;\n";
/// Those for the page before.
const BEFORE: &str = "\t.reg .b64 %gpuvm_f; .reg .b32 %gpuvm_l; .reg .pred %gpuvm_q;\n";
/// Those for several guards.
const GUARDS: &str = "\t.reg .pred %gpuvm_o, %gpuvm_u;\n";
/// Those for stores.
const STORES: &str = "\t.reg .pred %gpuvm_s, %gpuvm_v;\n";

/// An access that looks up, or uses what another one has looked up.
#[derive(Debug, Clone)]
pub(crate) struct LookUp<'i, 'a> {
    /// What it does.
    pub(crate) access: Access,
    /// Its guard.
    pub(crate) guard: Option<Guard<'a>>,
    /// Its address.
    pub(crate) address: &'i Address<'a>,
    /// What it shares, and with whom.
    pub(crate) shared: Option<(Share, &'i Group<'a>)>,
}

/// Registers of this many groups: `x` is the base of each after its last address was looked up, `y` the same by the entry of the page before,
/// and `r` where in its page the last address is.
pub(crate) fn declaration(groups: usize) -> String {
    match groups {
        0 => String::new(),
        _ => format!("\n.reg .b64 %gpuvm_x<{groups}>, %gpuvm_y<{groups}>; .reg .b32 %gpuvm_r<{groups}>;"),
    }
}

impl TableLayout {
    /// What stands before an access, in a block that ends behind it, and the access's address then. Nothing where that is known.
    pub(crate) fn look_up(&self, look_up: &LookUp<'_, '_>) -> (String, String) {
        let mut text = String::with_capacity(1000);
        // Writing to a string does not fail.
        let Some((share, group)) = look_up.shared else {
            text.push_str(BLOCK);
            let _ = self.alone(&mut text, look_up);
            return (text, "[%gpuvm_a]".to_owned());
        };
        let number = group.number;
        if share.is_first || share.marks_itself || share.below > 0 {
            text.push_str(BLOCK);
        }
        if share.is_first {
            text.push_str(if group.bytes() > 0 { BEFORE } else { "" });
            text.push_str(if group.used().nth(1).is_some() { GUARDS } else { "" });
            text.push_str(if group.stored().next().is_some() { STORES } else { "" });
            let _ = self.first(&mut text, look_up, group);
        }
        if share.marks_itself {
            let _ = self.marked(&mut text, look_up);
        }
        let Share { below, offset, .. } = share;
        if below == 0 {
            return (text, format!("[%gpuvm_x{number}+{offset}]"));
        }
        let _ = write!(
            text,
            "\tsetp.lt.u32 %gpuvm_p, %gpuvm_r{number}, {below};\n\
             \tselp.b64 %gpuvm_a, %gpuvm_y{number}, %gpuvm_x{number}, %gpuvm_p;\n"
        );
        (text, format!("[%gpuvm_a+{offset}]"))
    }

    /// `%gpuvm_a` is where the access has to go.
    fn alone(&self, out: &mut String, look_up: &LookUp<'_, '_>) -> Result {
        let LookUp { access, guard, .. } = look_up;
        let (access, guard) = (*access, *guard);
        address(out, look_up.address)?;
        inside(out, guard)?;
        self.entry_of_page(out)?;
        let touches = self.touches_by(access);
        if touches {
            is_at_home(out, "%gpuvm_e", "%gpuvm_p")?;
        }
        self.place(out, "%gpuvm_a", "%gpuvm_a", "%gpuvm_e")?;
        if touches || access.writes() {
            self.mark_address(out)?;
            mark(out, 0, "%gpuvm_p")?;
        }
        Ok(())
    }

    /// Looks up for a group: the page of its last address, and where it reaches into the page before, that one. Where accesses under several
    /// guards share, it may be that the one that happens lies in the other page of the two: then the page is not marked. It is marked for
    /// all stores of the group.
    fn first(&self, out: &mut String, look_up: &LookUp<'_, '_>, group: &Group<'_>) -> Result {
        let (number, bytes) = (group.number, group.bytes());
        let (base, last) = (look_up.address.base, group.last());
        writeln!(out, "\tadd.s64 %gpuvm_a, {base}, {last};")?;
        from_base(out)?;
        if bytes > 0 {
            let in_page = (1_u32 << self.page_shift()) - 1;
            writeln!(
                out,
                "\tmov.b32 %gpuvm_l, %gpuvm_i;\n\tand.b32 %gpuvm_r{number}, %gpuvm_i, {in_page};"
            )?;
        }
        let touches = group.loads && self.touches_by(Access::Load);
        let (used, stored): (Vec<Used<'_>>, Vec<Used<'_>>) = (group.used().collect(), group.stored().collect());
        is_last_used(out, "%gpuvm_p", number, &used, touches)?;
        if !stored.is_empty() {
            is_last_used(out, "%gpuvm_s", number, &stored, true)?;
        }
        self.entry_of_page(out)?;
        if bytes > 0 {
            // The group's first address less the window's: its upper half says whether that one is inside.
            writeln!(
                out,
                "\tsub.cc.u32 %gpuvm_l, %gpuvm_l, {bytes};\n\tsubc.u32 %gpuvm_h, %gpuvm_h, 0;"
            )?;
            is_before_used(out, "%gpuvm_q", group, &used, touches)?;
            if !stored.is_empty() {
                is_before_used(out, "%gpuvm_v", group, &stored, true)?;
            }
            write!(
                out,
                "\tmov.b64 %gpuvm_f, 0;\n\t@%gpuvm_q ld.global.nc.u64 %gpuvm_f, [%gpuvm_t+-{ENTRY_BYTES}];\n"
            )?;
        }
        if touches || !stored.is_empty() {
            self.mark_address(out)?;
            for (entry, used, stores, offset) in [
                ("%gpuvm_e", "%gpuvm_p", "%gpuvm_s", 0),
                ("%gpuvm_f", "%gpuvm_q", "%gpuvm_v", -1),
            ] {
                if offset < 0 && bytes == 0 {
                    continue;
                }
                if touches {
                    is_at_home(out, entry, used)?;
                }
                match (touches, stored.is_empty()) {
                    (true, true) => mark(out, offset, used)?,
                    (false, _) => mark(out, offset, stores)?,
                    (true, false) => {
                        writeln!(out, "\tor.pred {used}, {used}, {stores};")?;
                        mark(out, offset, used)?;
                    }
                }
            }
        }
        self.place(out, &format!("%gpuvm_x{number}"), base, "%gpuvm_e")?;
        match bytes {
            0 => Ok(()),
            _ => self.place(out, &format!("%gpuvm_y{number}"), base, "%gpuvm_f"),
        }
    }

    /// `to` is where an address is by an entry.
    fn place(&self, out: &mut String, to: &str, address: &str, entry: &str) -> Result {
        if self.has_flags() {
            writeln!(out, "\tand.b64 {entry}, {entry}, -2;")?;
        }
        writeln!(out, "\tadd.s64 {to}, {address}, {entry};")
    }

    /// Marks the page that an access of a group changes.
    fn marked(&self, out: &mut String, look_up: &LookUp<'_, '_>) -> Result {
        address(out, look_up.address)?;
        inside(out, look_up.guard)?;
        self.page(out)?;
        self.mark_address(out)?;
        mark(out, 0, "%gpuvm_p")
    }

    /// `%gpuvm_t` is the address of page `%gpuvm_i`'s mark.
    fn mark_address(&self, out: &mut String) -> Result {
        write!(
            out,
            "\tld.const.u64 %gpuvm_t, [{WINDOW}+24];\n\tmad.wide.u32 %gpuvm_t, %gpuvm_i, 1, %gpuvm_t;\n"
        )
    }

    /// `%gpuvm_i` is the page's number.
    fn page(&self, out: &mut String) -> Result {
        let shift = self.page_shift();
        writeln!(out, "\tshf.r.clamp.b32 %gpuvm_i, %gpuvm_i, %gpuvm_h, {shift};")
    }

    /// `%gpuvm_e` is its entry.
    fn entry_of_page(&self, out: &mut String) -> Result {
        self.page(out)?;
        write!(
            out,
            "\tld.const.u64 %gpuvm_t, [{WINDOW}+16];\n\
             \tmad.wide.u32 %gpuvm_t, %gpuvm_i, {ENTRY_BYTES}, %gpuvm_t;\n\tmov.b64 %gpuvm_e, 0;\n\
             \t@%gpuvm_p ld.global.nc.u64 %gpuvm_e, [%gpuvm_t];\n"
        )
    }
}

/// `%gpuvm_a` is the address as the kernel has it.
pub(crate) fn address(out: &mut String, address: &Address<'_>) -> Result {
    match address.offset {
        None => writeln!(out, "\tmov.b64 %gpuvm_a, {};", address.base),
        Some(offset) if !offset.subtracted => writeln!(out, "\tadd.s64 %gpuvm_a, {}, {};", address.base, offset.text),
        Some(offset) => writeln!(out, "\tsub.s64 %gpuvm_a, {}, {};", address.base, offset.text),
    }
}

/// `%gpuvm_i` and `%gpuvm_h` are the address less the window's, `%gpuvm_w` the upper half of its length.
fn from_base(out: &mut String) -> Result {
    // The upper halves of base and length. They are operands in constant memory, not loads.
    write!(
        out,
        "\tmov.b64 {{%gpuvm_i, %gpuvm_h}}, %gpuvm_a;\n\tld.const.u32 %gpuvm_w, [{WINDOW}+4];\n\
         \tsub.s32 %gpuvm_h, %gpuvm_h, %gpuvm_w;\n\tld.const.u32 %gpuvm_w, [{WINDOW}+12];\n"
    )
}

/// As [`from_base`], and `%gpuvm_p` says whether the address is inside.
pub(crate) fn inside(out: &mut String, guard: Option<Guard<'_>>) -> Result {
    from_base(out)?;
    is_below_length(out, "%gpuvm_p", guard)
}

/// `is` says whether a group's last address is inside of the window, and whether one of some accesses of the group happens; exactly: in that
/// page.
fn is_last_used(out: &mut String, is: &str, number: usize, used: &[Used<'_>], exactly: bool) -> Result {
    let is_alone = |one: &&Used<'_>| one.nearest == 0 && (one.guard.is_none() || used.len() == 1);
    match used.iter().find(is_alone) {
        Some(alone) => is_below_length(out, is, alone.guard),
        None if exactly => {
            any(out, is, used.iter(), |out, to, used| match used.nearest {
                0 => is_below_length(out, to, used.guard),
                nearest => compare(out, to, "ge", &format!("%gpuvm_r{number}, {nearest}"), used.guard),
            })?;
            writeln!(out, "\tsetp.lt.and.u32 {is}, %gpuvm_h, %gpuvm_w, {is};")
        }
        None => {
            let guard = any_guard(out, used)?;
            is_below_length(out, is, guard)
        }
    }
}

/// `is` says whether a group reaches into the page before, its first address, which `%gpuvm_h` is the upper half of, is inside of the
/// window, and one of some accesses of the group happens; exactly: in that page.
fn is_before_used(out: &mut String, is: &str, group: &Group<'_>, used: &[Used<'_>], exactly: bool) -> Result {
    let (number, bytes) = (group.number, group.bytes());
    let is_alone = |one: &&Used<'_>| one.farthest == bytes && (one.guard.is_none() || used.len() == 1);
    let guard = match used.iter().find(is_alone) {
        Some(alone) => alone.guard,
        None if exactly => {
            any(out, is, used.iter(), |out, to, used| {
                let both = format!("%gpuvm_r{number}, {}", used.farthest);
                compare(out, to, "lt", &both, used.guard)
            })?;
            return writeln!(out, "\tsetp.lt.and.u32 {is}, %gpuvm_h, %gpuvm_w, {is};");
        }
        None => any_guard(out, used)?,
    };
    is_below_length(out, is, guard)?;
    writeln!(out, "\tsetp.lt.and.u32 {is}, %gpuvm_r{number}, {bytes}, {is};")
}

/// A guard that holds where one of several does: `%gpuvm_o`. None where an access has none.
fn any_guard(out: &mut String, used: &[Used<'_>]) -> std::result::Result<Option<Guard<'static>>, std::fmt::Error> {
    if used.iter().any(|used| used.guard.is_none()) {
        return Ok(None);
    }
    for (at, Guard { register, negated }) in used.iter().filter_map(|used| used.guard).enumerate() {
        match (at, negated) {
            (0, false) => writeln!(out, "\tmov.pred %gpuvm_o, {register};")?,
            (0, true) => writeln!(out, "\tnot.pred %gpuvm_o, {register};")?,
            (_, false) => writeln!(out, "\tor.pred %gpuvm_o, %gpuvm_o, {register};")?,
            (_, true) => write!(
                out,
                "\tnot.pred %gpuvm_u, {register};\n\tor.pred %gpuvm_o, %gpuvm_o, %gpuvm_u;\n"
            )?,
        }
    }
    Ok(Some(Guard {
        register: "%gpuvm_o",
        negated: false,
    }))
}

/// `is` says whether one of some conditions holds, of which there is one at least.
fn any<'u, 'a: 'u>(
    out: &mut String,
    is: &str,
    all: impl Iterator<Item = &'u Used<'a>>,
    one: impl Fn(&mut String, &str, &Used<'a>) -> Result,
) -> Result {
    for (at, used) in all.enumerate() {
        if at == 0 {
            one(out, is, used)?;
        } else {
            one(out, "%gpuvm_o", used)?;
            writeln!(out, "\tor.pred {is}, {is}, %gpuvm_o;")?;
        }
    }
    Ok(())
}

/// `is` says whether `%gpuvm_h` is below `%gpuvm_w`, in threads that access: the others look up nothing.
fn is_below_length(out: &mut String, is: &str, guard: Option<Guard<'_>>) -> Result {
    compare(out, is, "lt", "%gpuvm_h, %gpuvm_w", guard)
}

/// `is` says whether two numbers compare so, in threads that access.
fn compare(out: &mut String, is: &str, how: &str, both: &str, guard: Option<Guard<'_>>) -> Result {
    match guard {
        Some(Guard { register, negated }) => {
            let not = if negated { "!" } else { "" };
            writeln!(out, "\tsetp.{how}.and.u32 {is}, {both}, {not}{register};")
        }
        None => writeln!(out, "\tsetp.{how}.u32 {is}, {both};"),
    }
}

/// `is` says whether an entry has its flag. One that was not loaded has none.
fn is_at_home(out: &mut String, entry: &str, is: &str) -> Result {
    writeln!(
        out,
        "\tmov.b64 {{%gpuvm_h, %gpuvm_w}}, {entry};\n\tand.b32 %gpuvm_h, %gpuvm_h, {AT_HOME};\n\
         \tsetp.ne.u32 {is}, %gpuvm_h, 0;"
    )
}

/// Marks the page whose mark is at `%gpuvm_t`, or a neighbour, where `is` holds.
fn mark(out: &mut String, offset: i32, is: &str) -> Result {
    let at = if offset == 0 {
        String::new()
    } else {
        format!("+{offset}")
    };
    write!(
        out,
        "\tmov.b32 %gpuvm_w, 1;\n\t@{is} st.global.u8 [%gpuvm_t{at}], %gpuvm_w;\n"
    )
}
