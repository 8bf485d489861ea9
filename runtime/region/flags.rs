//! The flags by which lanes know what a region is: `ARRAY_*` of a kernel's argument, and `REGION_*` of the region table. All follow from
//! [`Traits`] and from advice, here alone.

use gpuvm_layouts as layout;

use super::advice::{Advice, Advised};
use crate::placement::{Effective, Placement};

/// How kernels use a region, as it was made.
#[derive(Clone, Copy, Default)]
pub(crate) struct Kind {
    /// They never write it.
    pub read_only: bool,
    /// Its frames are its own, one a page.
    pub never_evicted: bool,
    /// None: whatever suits it.
    pub placement: Option<Placement>,
}

const LENDS: &str = "its clean pages go to memory that neighbours lend, as it was made: their entries in the page table name places there";

/// What the flags on one GPU follow from, besides advice.
#[derive(Clone, Copy)]
pub(super) struct Traits {
    pub kind: Kind,
    pub pages: u64,
    /// Device address of page 0 at the home, 0 if lanes do not reach it.
    pub home: u64,
    /// The GPU borrows memory of neighbours, where clean pages may go.
    pub borrows: bool,
    pub replicated: bool,
    pub checked: bool,
    /// The GPU is no simulated one, on which look-ups gain nothing, and their form takes a compiler seconds.
    pub is_hardware: bool,
}

impl Traits {
    /// Where pages are used under such advice, and why not where that was asked.
    pub fn effective(&self, advised: Advised) -> Effective {
        let asked = advised.placement.or(self.kind.placement);
        let (placement, because) = self.place(asked);
        let lends = self.has_victims().then_some(LENDS);
        let (placement, because) = match (lends, asked) {
            (Some(because), Some(asked)) if asked != Placement::Fetch => (Placement::Fetch, Some(because)),
            (Some(_), _) => (Placement::Fetch, None),
            (None, _) => (placement, because),
        };
        let stores_in_place = advised.stores_in_place()
            && lends.is_none()
            && !self.kind.read_only
            && !self.kind.never_evicted
            && self.is_reached();
        Effective {
            asked,
            placement,
            because,
            while_resident: self.is_looked_up_resident(advised),
            stores_in_place,
        }
    }

    /// Why launches cannot look its pages up, if so, wherever it is placed.
    pub fn why_not_looked_up(&self) -> Option<&'static str> {
        match self.has_victims() {
            true => Some(LENDS),
            false => self.decide(Placement::LookUp).1,
        }
    }

    /// Whether launches look its pages up while all of them have frames, and only then: nobody asked for faults, and nothing but a home that GPU threads
    /// do not reach is in the way.
    pub fn is_looked_up_resident(&self, advised: Advised) -> bool {
        let asked = advised.placement.or(self.kind.placement);
        let faults = self.kind.never_evicted || self.is_reached() || self.checked || self.replicated;
        let asks = asked == Some(Placement::LookUp) || (asked.is_none() && self.is_hardware);
        asks && !faults && self.pages != 0 && self.pages >> 32 == 0
    }

    /// Whether clean pages that leave their frames go to neighbours. Absent pages' entries name slots there, and count nothing: such a region is
    /// not used in place, whatever it is advised.
    fn has_victims(&self) -> bool {
        let placement = self.place(self.kind.placement).0;
        self.borrows && self.home != 0 && !self.kind.never_evicted && placement == Placement::Fetch
    }

    /// Whether launches that look its pages up may find them in slots at neighbours. Absent pages' entries count what is read at the home under
    /// [`Placement::Auto`] alone, which no advice says.
    fn has_places(&self) -> bool {
        self.borrows && self.place(self.kind.placement).0 == Placement::LookUp
    }

    /// Whether pages have slots at neighbours: clean ones that leave their frames, or those that launches look up.
    pub fn uses_slots(&self) -> bool {
        self.has_victims() || self.has_places()
    }

    /// What it comes to, and why that is not what was asked. Where nothing was, pages are looked up where they can be.
    fn place(&self, asked: Option<Placement>) -> (Placement, Option<&'static str>) {
        match asked {
            Some(asked) => self.decide(asked),
            None if self.decide(Placement::LookUp).1.is_none() => (Placement::LookUp, None),
            None => (Placement::Fetch, None),
        }
    }

    /// What a placement comes to without neighbours, and why.
    fn decide(&self, asked: Placement) -> (Placement, Option<&'static str>) {
        let unreached = match self.home {
            _ if self.kind.never_evicted => Some("it is never evicted: each page that has come has a frame of its own"),
            0 => Some("GPU threads do not reach its home by loads: queue pairs bring its pages"),
            home if !home.is_multiple_of(16) => Some("its home does not begin at a multiple of 16 bytes"),
            _ => None,
        };
        match (asked, unreached) {
            (Placement::Fetch, _) => (Placement::Fetch, None),
            (_, Some(because)) => (Placement::Fetch, Some(because)),
            (Placement::Auto, _) if self.pages >> 32 != 0 => (
                Placement::WhileFree,
                Some("samples are drawn of up to 2^32 pages, and it has more"),
            ),
            (Placement::LookUp, _) if self.pages >> 32 != 0 => (
                Placement::WhileFree,
                Some("fewer than 2^32 pages are looked up, and it has more"),
            ),
            (Placement::LookUp, _) if self.checked || self.replicated => (
                Placement::WhileFree,
                Some("what GPU threads store at home has neither a checksum nor a second copy"),
            ),
            (placement, None) => (placement, None),
        }
    }

    /// `ARRAY_*` of the kernel argument under such advice.
    pub fn array_flags(&self, advised: Advised) -> u32 {
        let effective = self.effective(advised);
        if self.kind.never_evicted {
            return layout::ARRAY_NEVER_EVICTED;
        }
        if self.has_victims() {
            return layout::ARRAY_VICTIMS;
        }
        let rules = match effective.placement {
            Placement::Fetch => None,
            Placement::InPlace => Some(0),
            Placement::WhileFree => Some(layout::ARRAY_FETCH_WHILE_FREE),
            Placement::Auto => Some(layout::ARRAY_FETCH_WHILE_FREE | layout::ARRAY_DUELS),
            Placement::LookUp => Some(layout::ARRAY_FETCH_WHILE_FREE | layout::ARRAY_LOOKED_UP),
        };
        let placed = rules.map_or(0, |rules| {
            layout::ARRAY_IN_PLACE | rules | flag(!self.kind.read_only, layout::ARRAY_HOME_CHANGES)
        });
        placed | flag(effective.stores_in_place, layout::ARRAY_STORES_IN_PLACE)
    }

    /// Whether lanes can use elements at the home.
    fn is_reached(&self) -> bool {
        self.home != 0 && self.home.is_multiple_of(16)
    }

    /// `REGION_*` under such advice.
    pub fn region_flags(&self, advised: Advised, rank: u32) -> u32 {
        let array = self.array_flags(advised);
        let usage = match advised.usage {
            Advice::Sequential => layout::REGION_READ_ONCE | layout::REGION_ASCENDING,
            Advice::Random => layout::REGION_RANDOM,
            Advice::ReadOnce => layout::REGION_READ_ONCE,
            _ => 0,
        };
        layout::REGION_LIVE
            | usage
            | rank << layout::REGION_RANK_SHIFT
            | flag(self.kind.read_only, layout::REGION_READ_ONLY)
            | flag(self.kind.never_evicted, layout::REGION_NEVER_EVICTED)
            | flag(self.replicated, layout::REGION_REPLICATED)
            | flag(self.checked, layout::REGION_CHECKED)
            | flag(array & layout::ARRAY_DUELS != 0, layout::REGION_DUELS)
            | flag(self.has_places(), layout::REGION_PLACES)
            | flag(
                array & layout::ARRAY_FETCH_WHILE_FREE != 0,
                layout::REGION_FETCH_WHILE_FREE,
            )
    }
}

fn flag(set: bool, flag: u32) -> u32 {
    if set { flag } else { 0 }
}

/// The placement that such `ARRAY_*` come to.
pub(crate) fn placement_of(array_flags: u32) -> Placement {
    let has = |flag| array_flags & flag != 0;
    match (
        has(layout::ARRAY_IN_PLACE),
        has(layout::ARRAY_FETCH_WHILE_FREE),
        has(layout::ARRAY_DUELS),
    ) {
        _ if has(layout::ARRAY_LOOKED_UP) => Placement::LookUp,
        (false, ..) => Placement::Fetch,
        (true, false, _) => Placement::InPlace,
        (true, true, false) => Placement::WhileFree,
        (true, true, true) => Placement::Auto,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ASKED: [Placement; 5] = [
        Placement::Auto,
        Placement::Fetch,
        Placement::InPlace,
        Placement::WhileFree,
        Placement::LookUp,
    ];

    fn traits(placement: Placement) -> Traits {
        Traits {
            kind: Kind {
                placement: Some(placement),
                ..Kind::default()
            },
            pages: 100,
            home: 1 << 20,
            borrows: false,
            replicated: false,
            checked: false,
            is_hardware: true,
        }
    }

    /// What is decided is what the flags say, and a reason is given where it is not what was asked.
    fn holds(traits: &Traits, advised: Advised, placement: Placement) {
        let (effective, flags) = (traits.effective(advised), traits.array_flags(advised));
        assert_eq!(effective.placement, placement, "{effective}");
        assert_eq!(placement_of(flags), placement, "{flags:#x}");
        let as_asked = effective.asked.is_none_or(|asked| asked == placement);
        assert_eq!(effective.because.is_none(), as_asked, "{effective}");
        let stores = flags & layout::ARRAY_STORES_IN_PLACE != 0;
        assert_eq!(effective.stores_in_place, stores, "{effective}");
    }

    /// Pages of which nothing was asked are looked up where that is all that they are, and fetched elsewhere.
    #[test]
    fn where_nothing_was_asked_pages_are_looked_up_if_they_can_be() {
        let unadvised = Advised::default();
        let mut open = traits(Placement::LookUp);
        open.kind.placement = None;
        holds(&open, unadvised, Placement::LookUp);
        for change in [
            (|traits| traits.home = 0) as fn(&mut Traits),
            |traits| traits.home += 8,
            |traits| traits.kind.never_evicted = true,
            |traits| traits.replicated = true,
            |traits| traits.checked = true,
            |traits| traits.pages = 1 << 32,
        ] {
            let mut traits = open;
            change(&mut traits);
            holds(&traits, unadvised, Placement::Fetch);
        }
        holds(&open, unadvised.after(Advice::Fetch), Placement::Fetch);
        // Where neighbours lend memory, too: then pages have slots there, and those that are fetched alone name them when they leave their frames.
        let borrows = Traits { borrows: true, ..open };
        holds(&borrows, unadvised, Placement::LookUp);
        let is_place = |traits: &Traits| traits.region_flags(unadvised, 0) & layout::REGION_PLACES != 0;
        assert!(is_place(&borrows) && !is_place(&open));
        let lends = Traits {
            kind: traits(Placement::Fetch).kind,
            ..borrows
        };
        assert!(lends.array_flags(unadvised) == layout::ARRAY_VICTIMS && !is_place(&lends));
    }

    #[test]
    fn what_is_decided_is_said_with_the_reason() {
        let unadvised = Advised::default();
        for asked in ASKED {
            let open = traits(asked);
            holds(&open, unadvised, asked);
            for other in [Placement::InPlace, Placement::Fetch] {
                let advised = Advised {
                    placement: Some(other),
                    usage: Advice::WriteOnce,
                };
                holds(&open, advised, other);
            }
            let mut closed = [open; 3];
            closed[0].home = 0;
            closed[1].home += 8;
            closed[2].kind.never_evicted = true;
            for traits in closed {
                holds(&traits, unadvised, Placement::Fetch);
            }
            let fewer = |placement| match placement {
                Placement::LookUp => Placement::WhileFree,
                placement => placement,
            };
            let in_place = Advised::default().after(Advice::InPlace);
            for (replicated, checked) in [(true, false), (false, true)] {
                let limited = Traits {
                    replicated,
                    checked,
                    ..open
                };
                holds(&limited, unadvised, fewer(asked));
                holds(&limited, in_place, Placement::InPlace);
            }
            // Whose clean pages go to neighbours follows no advice.
            let lends = Traits { borrows: true, ..open };
            let stays = asked == Placement::Fetch;
            holds(&lends, unadvised, asked);
            holds(
                &lends,
                in_place,
                if stays { Placement::Fetch } else { Placement::InPlace },
            );
            let many = Traits { pages: 1 << 32, ..open };
            let drawn = matches!(asked, Placement::Auto | Placement::LookUp);
            holds(&many, unadvised, if drawn { Placement::WhileFree } else { asked });
        }
        let said = traits(Placement::LookUp);
        assert_eq!(said.effective(unadvised).to_string(), "look-up");
        let said = Traits { home: 0, ..said }.effective(unadvised).to_string();
        assert!(
            said.starts_with("fetch, and not look-up: GPU threads do not reach its home"),
            "{said}"
        );
    }

    /// Of a region.
    type Change = fn(&mut Traits);

    /// What each kind of region does with each placement, as the guide has it.
    fn table() -> String {
        let open = traits(Placement::LookUp);
        let kinds: [(&str, Change); 6] = [
            ("that GPU threads reach by loads", |_| ()),
            (
                "whose pages queue pairs bring, of this host or of memory nodes",
                |one| one.home = 0,
            ),
            (
                "over lent memory that begins elsewhere than at a multiple of 16 bytes",
                |one| one.home += 8,
            ),
            ("that is never evicted", |one| one.kind.never_evicted = true),
            ("with checksums or replicas", |one| one.checked = true),
            ("of 2^32 pages and more", |one| one.pages = 1 << 32),
        ];
        let asked: Vec<Option<Placement>> = std::iter::once(None).chain(ASKED.map(Some)).collect();
        let mut text = "| a region |".to_owned();
        for one in &asked {
            text += &one.map_or(" nothing asked |".to_owned(), |one| format!(" `{one}` |"));
        }
        text += " why |\n|---|";
        text += &"---|".repeat(asked.len() + 1);
        for (kind, change) in kinds {
            text += &format!("\n| {kind} |");
            let mut reasons: Vec<&str> = Vec::new();
            for one in &asked {
                let mut its = open;
                its.kind.placement = *one;
                change(&mut its);
                let found = its.effective(Advised::default());
                let as_asked = *one == Some(found.placement);
                text += &if as_asked {
                    " as asked |".to_owned()
                } else {
                    format!(" `{}` |", found.placement)
                };
                reasons.extend(found.because.filter(|because| !reasons.contains(because)));
            }
            text += &format!(" {} |", reasons.join("; "));
        }
        text + "\n"
    }

    /// `GPUVM_RENEW_TABLES=1` writes it anew.
    #[test]
    fn the_guide_says_what_is_decided() {
        const PLACE: (&str, &str) = ("<!-- what placements come to: generated -->\n", "<!-- end -->");
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/guide/src/choosing.md");
        let guide = std::fs::read_to_string(path).unwrap();
        let (before, rest) = guide.split_once(PLACE.0).expect("where it begins");
        let (found, after) = rest.split_once(PLACE.1).expect("where it ends");
        if std::env::var_os("GPUVM_RENEW_TABLES").is_some() {
            std::fs::write(path, format!("{before}{}{}{}{after}", PLACE.0, table(), PLACE.1)).unwrap();
            return;
        }
        assert_eq!(
            found,
            table(),
            "GPUVM_RENEW_TABLES=1 cargo test the_guide_says_what_is_decided writes it anew"
        );
    }
}
