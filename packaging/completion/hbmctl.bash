# bash completion of hbmctl: what may stand there hbmctl itself knows.
_hbmctl() {
    local line=${COMP_LINE:0:COMP_POINT} current before word
    local -a words
    read -ra words <<<"$line"
    [[ $line == *[[:space:]] ]] && words+=('')
    current=${words[-1]}
    # bash takes a colon for the end of a word, and wants what is behind it.
    before=${current%"${current##*:}"}
    COMPREPLY=()
    while IFS= read -r word; do
        COMPREPLY+=("${word#"$before"}")
    done < <(timeout 2 "${words[0]}" complete -- "${words[@]:1}" 2>/dev/null)
    # A name goes on behind a slash or a colon.
    [[ ${#COMPREPLY[@]} -eq 1 && ${COMPREPLY[0]} == *[/:] ]] && compopt -o nospace 2>/dev/null
    return 0
}
complete -o default -F _hbmctl hbmctl
