
%(complete_func)s() {
    local response line
    response=$(env COMP_WORDS="${COMP_WORDS[*]}" COMP_CWORD="$COMP_CWORD" COMP_TYPED="${COMP_LINE:0:COMP_POINT}" \
COMP_BREAKS="$COMP_WORDBREAKS" COMP_ESCAPED=1 %(complete_var)s=bash_complete "$1")
    COMPREPLY=()
    while IFS= read -r line; do
        case "$line" in
            dir,*) compopt -o dirnames ;;
            file,*) compopt -o default ;;
            field,*) compopt -o nospace; COMPREPLY+=("${line#field,}") ;;
            plain,*) COMPREPLY+=("${line#plain,}") ;;
        esac
    done <<< "$response"
}

complete -o nosort -F %(complete_func)s %(prog_name)s
