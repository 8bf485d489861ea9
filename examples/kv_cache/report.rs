//! What is printed.

use std::io::Write;

use gpuvm_tenants::spell_bytes;
use serde_json::{Value, json};

use crate::{args::Plan, cache::Form, error::Problem, reference::TOLERANCE, run::Outcome};

/// What was run, and what came of it.
pub struct Report<'a> {
    /// The GPU's name.
    pub gpu: String,
    /// What was run.
    pub plan: &'a Plan,
    /// A form each.
    pub outcomes: &'a [Outcome],
    /// Whether the last step was compared with the CPU.
    pub with_reference: bool,
    /// Bytes of the handles that elastic buffers have.
    pub handle_bytes: u64,
}

/// What is told of a form.
struct Figures {
    /// Tokens a second, all sequences together.
    speed: f64,
    /// The speed by that of the preallocated form, if that ran.
    ratio: Option<f64>,
    /// Bytes held over bytes used, less one, in percent.
    waste: f64,
}

impl Report<'_> {
    fn speed(&self, outcome: &Outcome) -> f64 {
        let tokens = u64::from(self.plan.sequences()) * u64::from(self.plan.steps);
        tokens as f64 / outcome.time().as_secs_f64()
    }

    fn figures(&self, outcome: &Outcome) -> Figures {
        let mut ceilings = self.outcomes.iter().filter(|other| other.form == Form::Preallocated);
        let speed = self.speed(outcome);
        Figures {
            speed,
            ratio: ceilings.next().map(|ceiling| speed / self.speed(ceiling)),
            waste: (outcome.held_bytes as f64 / self.plan.used_bytes() as f64 - 1.0) * 100.0,
        }
    }

    /// Writes the table, and what it stands on.
    ///
    /// # Errors
    /// [`Problem::Output`].
    pub fn write_table(&self, out: &mut impl Write) -> Result<(), Problem> {
        let plan = self.plan;
        let longest = plan.prompts.first().copied().unwrap_or_default();
        let shortest = plan.prompts.last().copied().unwrap_or_default();
        writeln!(
            out,
            "{} sequences of {shortest} to {longest} tokens and {} steps, {} heads of {} numbers, {} of keys and values at last, on {}",
            plan.sequences(),
            plan.steps,
            plan.heads,
            plan.head_size,
            spell_bytes(plan.used_bytes()),
            self.gpu
        )?;
        writeln!(
            out,
            "{:<14}{:>14}{:>20}{:>16}{:>12}",
            "form", "tokens/s", "to preallocated", "GPU memory", "waste"
        )?;
        for outcome in self.outcomes {
            let figures = self.figures(outcome);
            let ratio = figures
                .ratio
                .map_or("-".to_owned(), |ratio| format!("{:.1} %", ratio * 100.0));
            writeln!(
                out,
                "{:<14}{:>14.0}{ratio:>20}{:>16}{:>10.2} %",
                outcome.form.name(),
                figures.speed,
                spell_bytes(outcome.gpu_bytes),
                figures.waste
            )?;
        }
        self.write_notes(out)
    }

    fn write_notes(&self, out: &mut impl Write) -> Result<(), Problem> {
        for outcome in self.outcomes {
            let growths = outcome.growths;
            match outcome.form {
                Form::Elastic => writeln!(
                    out,
                    "elastic: handles of {}; {} of {} growths in the steps only moved a length",
                    spell_bytes(self.handle_bytes),
                    growths.foreseen,
                    growths.foreseen + growths.unforeseen
                )?,
                Form::Paged => writeln!(
                    out,
                    "paged: {} pages of {} were fetched in the steps",
                    outcome.pages_fetched,
                    spell_bytes(self.plan.page_bytes)
                )?,
                Form::Managed => writeln!(
                    out,
                    "managed: what {} of GPU memory do not hold was moved to the host before each step, which is not timed",
                    spell_bytes(outcome.gpu_bytes)
                )?,
                Form::Preallocated | Form::Blocks => {}
            }
        }
        if self.outcomes.len() > 1 {
            writeln!(out, "all forms have the same bits in every step")?;
        }
        match self.with_reference {
            true => writeln!(out, "the last step is the CPU's to {TOLERANCE:e}")?,
            false => writeln!(
                out,
                "the last step was not compared with the CPU: it is too large for that"
            )?,
        }
        Ok(())
    }

    /// Writes a JSON object.
    ///
    /// # Errors
    /// [`Problem::Output`].
    pub fn write_json(&self, out: &mut impl Write) -> Result<(), Problem> {
        let plan = self.plan;
        let forms: Vec<Value> = self.outcomes.iter().map(|outcome| self.form_json(outcome)).collect();
        let object = json!({
            "gpu": self.gpu,
            "sequences": plan.sequences(),
            "steps": plan.steps,
            "prompt_tokens": plan.prompts.iter().map(|tokens| u64::from(*tokens)).sum::<u64>(),
            "heads": plan.heads,
            "head_size": plan.head_size,
            "block_tokens": plan.block_tokens,
            "page_bytes": plan.page_bytes,
            "used_bytes": plan.used_bytes(),
            "handle_bytes": self.handle_bytes,
            "compared_with_cpu": self.with_reference,
            "forms": forms,
        });
        Ok(writeln!(out, "{object:#}")?)
    }

    fn form_json(&self, outcome: &Outcome) -> Value {
        let figures = self.figures(outcome);
        let seconds: Vec<f64> = outcome.times.iter().map(|time| time.as_secs_f64()).collect();
        json!({
            "form": outcome.form.name(),
            "tokens_per_second": figures.speed,
            "ratio_to_preallocated": figures.ratio,
            "waste_percent": figures.waste,
            "held_bytes": outcome.held_bytes,
            "gpu_bytes": outcome.gpu_bytes,
            "growths_foreseen": outcome.growths.foreseen,
            "growths_unforeseen": outcome.growths.unforeseen,
            "pages_fetched": outcome.pages_fetched,
            "seconds": seconds,
        })
    }
}
