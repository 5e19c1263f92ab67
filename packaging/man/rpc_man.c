/* hbm-rpc(7) on standard output, from the tables that the daemon answers by. */
#include <ctype.h>
#include <stdio.h>

#include "proto/vocab.h"

struct param {
    const char *name, *type, *summary;
    int required;
};

/* Text as roff takes it; what stands between bars may be broken after each. */
static void plain(const char *text)
{
    for (; *text; text++)
        switch (*text) {
        case '\\':
            fputs("\\(rs", stdout);
            break;
        case '-':
            fputs("\\-", stdout);
            break;
        case '"':
            fputs("\\(dq", stdout);
            break;
        case '|':
            fputs("|\\:", stdout);
            break;
        default:
            putchar(*text);
        }
}

static void sentence(const char *text)
{
    fputs("\\&", stdout); /* what begins with a dot is no request */
    putchar(toupper((unsigned char)*text));
    plain(text + 1);
    puts(".");
}

static void print_param(const struct param *param)
{
    printf(".RS\n.TP\n.BR %s \" (%s%s)\"\n", param->name, param->type, param->required ? ", required" : "");
    sentence(param->summary);
    puts(".RE");
}

static void print_method(const char *name, int admin, const char *summary, const char *result,
                         const struct param *params)
{
    printf(".TP\n.B ");
    plain(name);
    putchar('\n');
    sentence(summary);
    if (admin)
        puts("For administrators.");
    for (; params->name; params++)
        print_param(params);
    puts(".RS\n.PP");
    fputs("Result: ", stdout);
    plain(result);
    puts(".");
    puts(".RE");
}

static void print_error(const char *name, int number, const char *what, const char *remedy)
{
    printf(".TP\n.BR %s \" (\\-%d)\"\n", name, number);
    sentence(what);
    sentence(remedy);
}

static void print_row(const char *name, const char *members)
{
    printf(".TP\n.B %s rows\n", name);
    plain(members);
    puts(".");
}

static const char head[] =
    ".TH HBM\\-RPC 7 2026-11-30 hbmd \"Miscellanea\"\n"
    ".na\n" /* lists of names, to be found as they are written */
    ".hy 0\n"
    ".SH NAME\n"
    "hbm\\-rpc \\- what programs may ask of the GPU memory broker\n"
    ".SH SYNOPSIS\n"
    ".B nc \\-U /run/hbmd/control.sock\n"
    ".br\n"
    ".B hbmctl rpc\n"
    ".I METHOD\n"
    ".RI [ PARAMS ]\n"
    ".SH DESCRIPTION\n"
    ".BR hbmd (8)\n"
    "answers JSON\\-RPC 2.0 on the socket\n"
    ".I control.sock\n"
    "of its runtime directory, one object or one batch a line.\n"
    "Parameters go by name or by position.\n"
    "Names of methods and of what they answer stay; later versions add to them, so a reader passes over what it "
    "does not\n"
    "know.\n"
    "A method that takes\n"
    ".B sel\n"
    "answers with a list, a row for each buffer, in which what could not be done has its own\n"
    ".BR error .\n"
    "The same as an OpenRPC document is the answer to\n"
    ".BR rpc.discover .\n"
    ".PP\n"
    "Everybody who may connect may ask, for what is their own or open to them; root, the daemon's user and members "
    "of\n"
    ".B hbm\\-admin\n"
    "for everything.\n"
    ".SH METHODS\n";

static const char tail[] = ".SH EXAMPLE\n"
                           ".nf\n"
                           "$ echo '{\\(dqjsonrpc\\(dq:\\(dq2.0\\(dq,\\(dqid\\(dq:1,"
                           "\\(dqmethod\\(dq:\\(dqhbm.status\\(dq}' |\n"
                           "      nc \\-NU /run/hbmd/control.sock\n"
                           ".fi\n"
                           ".SH SEE ALSO\n"
                           ".BR hbmctl (1),\n"
                           ".BR hbmd (8)\n";

int main(void)
{
    enum { OWN, ADMIN };
    static const char STRING[] = "string", NUMBER[] = "number", BOOLEAN[] = "boolean",
                      ID[] = "string \\(dq0x...\\(dq", LIST[] = "list";

    fputs(head, stdout);
#define P(type, name, required, summary) {#name, type, summary, required},
#define METHOD(NAME, name, permission, summary, result)                                                            \
    print_method(name, permission, summary, result, (const struct param[]){NAME##_PARAMS(P){NULL, NULL, NULL, 0}});
#include "proto/methods.def"
#undef METHOD
#undef P
    puts(".SH ROWS");
#define ROW(name, members) print_row(#name, members);
#include "proto/rows.def"
#undef ROW
    puts(".SH ERRORS");
#define ERROR(name, number, what, remedy) print_error(#name, number, what, remedy);
#include "proto/errors.def"
#undef ERROR
    fputs(tail, stdout);
    return fflush(stdout) ? 1 : 0;
}
