# Completion for bash. The program itself says what there is (--help=list), so this knows every option of the carousel that
# is installed: commands, options, and the values of --model, --rule, --placement and --optimizer; files and directories
# elsewhere.
# shellcheck shell=bash

_carousel() {
    local current previous program=${COMP_WORDS[0]} tab=$'\t' list rest word values
    local -a path=()
    COMPREPLY=()
    current=${COMP_WORDS[COMP_CWORD]}
    previous=${COMP_WORDS[COMP_CWORD - 1]}

    # What comes after "launch ... --" is a command line of its own.
    local first=1 w
    for ((w = 1; w < COMP_CWORD; w++)); do
        if [ "${COMP_WORDS[w]}" = -- ]; then
            first=$((w + 1))
        fi
    done
    # The command, and for some the command of the command: words that the program lists as such.
    list=$("$program" --help=list 2>/dev/null) || return
    for ((w = first; w < COMP_CWORD; w++)); do
        word=${COMP_WORDS[w]}
        if [[ $word == -* ]] || ! grep -q "^$word$tab" <<<"$list"; then
            break
        fi
        path+=("$word")
        list=$("$program" "${path[@]}" --help=list 2>/dev/null) || return
    done

    # The value of an option.
    if [[ $previous == --* ]]; then
        rest=$(grep "^$previous$tab" <<<"$list")
        if [ -n "$rest" ]; then
            IFS=$tab read -r _ word values _ <<<"${rest//$tab$tab/$tab-$tab}"
            case $word in
            -) ;;
            *FILE* | SOURCE | PROGRAM) mapfile -t COMPREPLY < <(compgen -f -- "$current"); return ;;
            *DIR*) mapfile -t COMPREPLY < <(compgen -d -- "$current"); return ;;
            *)
                [ "$values" = - ] || mapfile -t COMPREPLY < <(compgen -W "$values" -- "$current")
                return
                ;;
            esac
        fi
    fi

    if [ ${#path[@]} = 0 ] || [[ $current == -* ]] || ! grep -q '^--' <<<"$list"; then
        mapfile -t COMPREPLY < <(compgen -W "$(cut -f1 <<<"$list")" -- "$current")
    else
        mapfile -t COMPREPLY < <(compgen -f -- "$current")
    fi
}

complete -o filenames -F _carousel carousel
