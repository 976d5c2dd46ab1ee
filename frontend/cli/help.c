/* kiln help: all commands, as text and as the manual page kiln(1) (`kiln help man`), which is installed.  Both are made
 * from the table of commands, passes.def, stages.def and environment.def. */
#include "cli.h"
#include "passes/passes.h"
#include "runtime/runtime.h"
#include <ctype.h>
#include <kiln/kiln.h>
#include <string.h>

static const struct { const char *name, *text; } notes[] = {
    {"targets", "cuda hip vulkan, for the stages scheduled, source and asm; with a device's features behind a colon\n"
     "    as that device runs them (cuda:sm_90a, hip:gfx90a); without --target and --device: cuda"},
    {"processors", "baseline (also without --cpu), x86-64-v3, x86-64-v4, native: this one"},
    {"devices",
     "see kiln devices; --device is for the nodes on the graph's own device, the others stay where they are"},
    {"order", "graph: GPUs add floats in the order of the graph, so that results are the bits of ref and cpu;\n"
     "    schedule, also without it: in the order of their schedules, which is faster (option order)"},
    {"schedules", "what stage schedules prints, edited; KILN_SCHEDULES names such a file, too"},
};
enum { NOTES = sizeof notes / sizeof *notes };
static const char files[] =
    "FILE is a graph or kernel as text, - for standard input; where a graph goes, an ONNX model (.onnx) goes, too,\n"
    "whose inputs may come from TensorProto files (.pb). The text forms are described in ir/README.md.";
static const char kept[] =
    "kernels are kept in KILN_CACHE_DIR, else $XDG_CACHE_HOME/kiln, else ~/.cache/kiln; none: nowhere";

static void put_notes(FILE *f)
{
    fprintf(f, "\n%s\npasses:", files);
    for (unsigned i = 0; i < pass_count; i++)
        fprintf(f, " %s", pass_list[i].name);
    fprintf(f, "\nstages: %s\n", dump_stage_names());
    for (unsigned i = 0; i < NOTES; i++)
        fprintf(f, "%s: %s\n", notes[i].name, notes[i].text);
    fprintf(f, "%s\n", kept);
}

static void put_command(FILE *f, const struct cli_command *c)
{
    fprintf(f, "  kiln %s %s\n      %s\n", c->name, c->args, c->doc);
}

void cli_usage(FILE *f)
{
    fputs("usage: kiln COMMAND [ARGUMENTS]; kiln COMMAND --help; kiln --version\n\n", f);
    for (unsigned i = 0; i < cli_command_count; i++)
        put_command(f, &cli_commands[i]);
    put_notes(f);
}

void cli_command_usage(FILE *f, const struct cli_command *c)
{
    fputs("usage:\n", f);
    put_command(f, c);
    put_notes(f);
}

/* ---- the manual page, in the man macros of groff and mandoc ---- */

/* Text as roff has it: one space for any white space, hyphens that stay hyphens, `x` in bold. */
static void put_roff(FILE *f, const char *s)
{
    bool bold = false, space = false;
    if (*s == '.' || *s == '\'')
        fputs("\\&", f);
    for (; *s; s++) {
        if (isspace((unsigned char)*s)) {
            space = true;
            continue;
        }
        if (space)
            fputs(" ", f);
        space = false;
        if (*s == '`')
            fputs((bold = !bold) ? "\\fB" : "\\fR", f);
        else if (*s == '-')
            fputs("\\-", f);
        else if (*s == '\\')
            fputs("\\e", f);
        else if (*s == '~')
            fputs("\\(ti", f);
        else
            fputc(*s, f);
    }
    fputs("\n", f);
}

/* A paragraph with a tag. */
static void put_tagged(FILE *f, const char *tag, const char *args, const char *text)
{
    fprintf(f, ".TP\n.B \"%s\"\n", tag);
    if (*args) {
        fputs(".RS\n", f);
        put_roff(f, args);
        fputs(".br\n", f);
    }
    put_roff(f, text);
    if (*args)
        fputs(".RE\n", f);
}

void cli_manual(FILE *f)
{
    char tag[64];
    fprintf(f, ".\\\" Printed by `kiln help man`.\n.TH KILN 1 \"\" \"Kiln %s\" \"User Commands\"\n.nh\n", kl_version());
    fputs(".SH NAME\nkiln \\- compile, run and look at tensor programs in text form\n"
          ".SH SYNOPSIS\n.B kiln\n.I COMMAND\n.RI [ ARGUMENTS ]\n.SH DESCRIPTION\n"
          "Kiln compiles tensor programs just in time. This command works on graphs (.kir) and kernels (.loop)\n"
          "as text.\n",
          f);
    put_roff(f, files);
    fputs(".SH COMMANDS\n", f);
    for (unsigned i = 0; i < cli_command_count; i++) {
        snprintf(tag, sizeof tag, "kiln %s", cli_commands[i].name);
        put_tagged(f, tag, cli_commands[i].args, cli_commands[i].doc);
    }
    fputs(".SH STAGES\nWhat --stage may name, in order.\n", f);
#define STAGE(name, ext, text) put_tagged(f, #name, "", text);
#include "runtime/dump/stages.def"
    fputs(".SH PASSES\nWhat\n.B kiln opt \\-p\nmay name, in order.\n", f);
    for (unsigned i = 0; i < pass_count; i++)
        put_tagged(f, pass_list[i].name, "", pass_list[i].doc);
    fputs(".SH ARGUMENTS\n", f);
    for (unsigned i = 0; i < NOTES; i++)
        put_tagged(f, notes[i].name, "", notes[i].text);
    fputs(".SH ENVIRONMENT\nA value that means nothing, and a KILN_ name that is not here, is said on stderr.\n", f);
#define VARIABLE(name, kind, text) put_tagged(f, #name, "", text);
#include "runtime/environment.def"
    fputs(".SH FILES\n", f);
    put_roff(f, kept);
    fputs(".SH EXIT STATUS\n0: done. 1: refused or failed, with the reason on stderr. 2: the arguments were not\n"
          "understood.\n.B kiln diff\n"
          "and\n.B kiln check\n"
          "give 0 where nothing differs, 1 where something does, 2 where they cannot compare.\n",
          f);
}
